"""Accuracy on the images as they are."""

from labelflow.robust.results import Finding, Section, uncertainty
from labelflow.robust.session import Session
from labelflow.robust.sets import Set


class CleanImages:
    """Accuracy on the images as they are."""

    def __init__(self, session: Session, own: Set) -> None:
        self.session, self.own = session, own
        self.passes = session.passes(own)

    def measure(self) -> Section:
        (answers,) = self.session.ask(self.own, title="clean images")
        findings = [Finding("top-1", [found.top1[0] for found in answers])]
        if len(self.own.classes) > 5:
            findings.append(Finding("top-5", [found.top5[0] for found in answers]))
        counted, unread = int(answers[0].counts.sum()), int((~answers[0].counts).sum())
        notes = [f"{counted} images of {len(self.own.classes)} classes: {self.own.name}; {uncertainty(counted)}."]
        notes += [f"{unread} images could not be read and are left out everywhere."] * bool(unread)
        notes += [
            f"The answers of {model.name} are restricted to the classes of the data."
            for model in self.session.models
            if model.columns(self.own.classes) is not None
        ]
        return Section("clean", "Clean images", findings, notes=notes)
