"""Which file of a repository a name means."""

from __future__ import annotations

import pytest

from ggplug.errors import ModelNotFoundError
from ggplug_models.by_name.quantisations import choose

THREE = ["m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "README.md", "mmproj-m-Q4_K_M.gguf", "imatrix-Q8_0.gguf"]
SPLIT = [f"Q5_K_M/m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("files", "wanted", "chosen", "why"),
    [
        (THREE, "", "m-Q4_K_M.gguf", "Q4_K_M, which is preferred"),
        (THREE[2:], "", "m-Q8_0.gguf", "Q8_0, which is preferred"),
        (["b-F16.gguf", "a-BF16.gguf"], "", "a-BF16.gguf", "the first file, as there is neither Q4_K_M nor Q8_0"),
        (["a.gguf"], "", "a.gguf", "the only model"),
        (THREE, "q2_k", "m-Q2_K.gguf", "Q2_K, the name says so"),
        (["m.q8_0.gguf"], "Q8_0", "m.q8_0.gguf", "Q8_0, the name says so"),
        (["m-IQ4_XS.gguf", "m-Q4_XS.gguf"], "Q4_XS", "m-Q4_XS.gguf", "Q4_XS, the name says so"),
        (THREE, "mmproj-m-Q4_K_M.gguf", "mmproj-m-Q4_K_M.gguf", "the name says so"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "a-Q8_0.gguf", "the first of 2 files"),
        (SPLIT, "Q5_K_M", SPLIT[0], "3 files"),
        (SPLIT, SPLIT[1], SPLIT[0], "3 files"),
        (SPLIT, "", SPLIT[0], "the only model; 3 files"),
    ],
)
def test_the_file_is_chosen_by_its_name_or_its_quantisation(
    files: list[str], wanted: str, chosen: str, why: str
) -> None:
    found = choose(files, wanted, "hf:o/r")
    assert found.files[0] == chosen
    assert why in found.why


def test_all_files_of_a_split_model_are_chosen_in_order() -> None:
    assert choose(reversed(SPLIT), "Q5_K_M", "hf:o/r").files == tuple(SPLIT)


@pytest.mark.parametrize(
    ("files", "wanted", "message"),
    [
        (THREE, "Q4", "has no model with the quantisation Q4 .there are: m-Q"),
        (THREE, "other.gguf", "has no file other.gguf .there are: .*m-Q"),
        (["model.safetensors"], "", "has no model in a GGUF file .ggplug convert makes one"),
        (THREE[4:], "", "has no model in a GGUF file .there are: imatrix"),
        ([SPLIT[0], SPLIT[2]], "", f"has only 2 of the 3 files of {SPLIT[0]}; {SPLIT[1]} is missing"),
    ],
)
def test_a_name_that_means_no_file_is_refused_with_what_there_is(files: list[str], wanted: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"hf:o/r {message}"):
        choose(files, wanted, "hf:o/r")
