"""A fuzz campaign: hard inputs by the thousand, each of which must give a correct result or a sentence.

    python -m fuzz run nifti --count 20000 --seed 1 --out results/fuzz.csv
    python -m fuzz replay nifti 1:4711
    python -m fuzz table results/fuzz.csv

Inputs are made from seeds: the kind, the campaign's seed and the input's number tell all. They are given to the
product in a process of their own, with a limit on its memory and on the seconds of each input; a process that dies or
does not come back is a crash, and the next one goes on behind it.
"""
