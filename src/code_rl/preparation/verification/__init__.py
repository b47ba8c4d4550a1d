"""Stages that run programs: does the reference pass its tests (`verify`, `diagnosis` of those that fail), do the tests tell (`strengthen`).

`trials` runs a program and changes it, `inputs` changes a test's input. `pipeline` imports the stages, `normalise` a solution's run from `trials`, `replaying.rejudge` from `strengthen` what makes new tests.
"""
