"""Models that LM Studio keeps on this machine: folders of OWNER/REPOSITORY with GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ggplug.errors import ParameterError
from ggplug_models.by_name.folders import files_in, kept_in
from ggplug_models.by_name.quantisations import choose
from ggplug_models.by_name.store import Found, Judge, Kept, Store, not_found, repository_and_wanted


class LMStudio(Store):
    """``lmstudio:OWNER/REPOSITORY[:FILE or QUANTISATION]``."""

    prefix, title = "lmstudio", "LM Studio"

    @property
    def folders(self) -> list[Path]:
        """Where newer and older versions of LM Studio keep models."""
        return [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]

    def find(self, name: str, judge: Judge | None = None) -> Found:
        repository, wanted = repository_and_wanted(self.prefix, name)
        for folder in self.folders:
            files = files_in(folder / repository)
            if files:
                chosen = choose(files, wanted, f"{self.prefix}:{repository}")
                return Found(folder / repository / chosen.files[0], chosen.why)
        looked = " and ".join(map(str, self.folders))
        there = {each.name.removeprefix(f"{self.prefix}:").partition(":")[0] for each in self.kept()}
        raise not_found(f"LM Studio keeps no model {repository} in {looked}", repository, there)

    def kept(self) -> Iterator[Kept]:
        for folder in self.folders:
            for repository in sorted(each for each in folder.glob("*/*") if each.is_dir()):
                name = f"{self.prefix}:{repository.relative_to(folder).as_posix()}"
                yield from kept_in(repository, name)

    def remove(self, name: str) -> int:
        raise ParameterError(f"lmstudio:{name} is LM Studio's", remedy="delete the model in LM Studio")
