"""Write the lists of answers of an experiment, from its training questions.

    python experiments/feddat/answers.py experiments/feddat/vilt.yaml 100
    python experiments/feddat/answers.py experiments/fedvqa/gqa_fedavg.yaml 1642 --all

The file under `answers:` receives the most frequent answers, per client or of all clients together.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from simfl.config import load
from simfl.objectives.answers import top_answers
from simfl.objectives.ranking import Ranking
from simfl.objectives.vqa import Vqa


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, help="experiment file whose objective has answers")
    parser.add_argument("most", type=int, help="number of answers per list")
    parser.add_argument("--all", action="store_true", help="one list for all clients")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), help="folder of data sets")
    given = parser.parse_args()
    experiment = load(given.experiment)
    objective = experiment.phases[0].objective
    assert isinstance(objective, Vqa | Ranking)
    assert isinstance(objective.answers, str), "objective.answers must name a file"
    split = experiment.data.load(given.cache).splits["train"]
    lists = top_answers(split, given.most, None if given.all else objective.by, objective.normalize)
    file = Path(objective.answers)
    file.write_text(json.dumps(lists, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for name, answers in lists.items():
        print(f"{file}: {len(answers)} answers of {name or 'all'}")


if __name__ == "__main__":
    main()
