"""How models write their answers: reasoning, text and tool calls, by the formats of their chat templates."""
