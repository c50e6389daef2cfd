// Reads requests, one JSON object a line, and writes what llama.cpp's chat.cpp makes of them: the prompt of a chat, what
// its template adds for an answer, and the message in an answer's text.  record.py says how to compile it.

#include "chat.h"
#include "json.h"

#include <nlohmann/json.hpp>

#include <iostream>
#include <map>
#include <string>

using Json = nlohmann::ordered_json;

static Json message_of(const common_chat_msg & message) {
    Json calls = Json::array();
    for (const auto & call : message.tool_calls) {
        calls.push_back({call.name, call.arguments, call.id});
    }
    return {{"content", message.content}, {"reasoning", message.reasoning_content}, {"calls", calls}};
}

static Json answer(const Json & request) {
    static std::map<std::string, common_chat_templates_ptr> known;
    const std::string source = request.at("template");
    if (!known.count(source)) {
        known[source] = common_chat_templates_init(nullptr, source, "", request.value("eos", ""));
    }
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(common_json::parse(request.at("messages").dump()));
    inputs.tools = common_chat_tools_parse_oaicompat(common_json::parse(request.at("tools").dump()));
    inputs.parallel_tool_calls = true;
    inputs.reasoning_format = COMMON_REASONING_FORMAT_AUTO;
    inputs.add_generation_prompt = request.value("add_generation_prompt", true);
    const auto params = common_chat_templates_apply(known[source].get(), inputs);
    Json found = {{"prompt", params.prompt}, {"generation", params.generation_prompt}};
    if (request.contains("text")) {
        common_chat_parser_params parsing(params);
        parsing.reasoning_format = inputs.reasoning_format;
        parsing.parser.load(params.parser);
        found["message"] = message_of(common_chat_parse(request.at("text"), false, parsing));
    }
    return found;
}

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        Json found;
        try {
            found = answer(Json::parse(line));
        } catch (const std::exception & error) {
            found = {{"error", error.what()}};
        }
        std::cout << found.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
    }
}
