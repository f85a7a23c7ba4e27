"""A run over scans without scans, for processes that are to be ready soon: nothing heavy is imported here."""

import os
import time
from dataclasses import dataclass, field

from scantune.adaptation.output_folder import OutputFolder
from scantune.adaptation.scan_run import Outcome, ScanObserver
from scantune.adaptation.settings import AdaptSettings
from scantune.errors import InputError
from scantune.model.source import ModelSource
from scantune.scans.files import write_whole


@dataclass(frozen=True)
class ToyRun:
    """Stands for a run: what it does to a scan is written in it."""

    out: OutputFolder
    observer: ScanObserver = field(default_factory=ScanObserver)
    source: ModelSource = field(default_factory=lambda: ModelSource("toy"))
    settings: AdaptSettings = field(default_factory=lambda: AdaptSettings(device="cpu"))

    def adapt(self, name, files):
        (path,) = files
        self.observer.step(name, 1, 1)
        for word in path.read_text(encoding="utf-8").split():
            if word == "wait":
                time.sleep(1)
            elif word == "die":
                os._exit(9)
            elif word == "die-once":
                path.write_text("fine")
                os._exit(9)
            elif word == "full":
                raise InputError("The disk is full.")
            elif word == "write":
                write_whole(self.out.path / f"{name}.txt", self._slowly)
        return self.noted(name, {"status": "done", "outputs": {}})

    def _slowly(self, temporary):
        temporary.write_text("half")
        self.observer.step("", 2, 2)
        time.sleep(60)

    def give_up(self, name, _files, reason):
        return self.noted(name, {"status": "failed", "reason": reason})

    def noted(self, name, entry):
        self.out.note(name, entry, {})
        return Outcome(name, entry["status"], entry)
