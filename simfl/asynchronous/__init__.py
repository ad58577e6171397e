"""Asynchronous training: the schedule of events, and what becomes of updates that were computed from older versions.

An update is a pure function of the version that its client received, and its duration does not depend on trained
values. The schedule is therefore known without training anything, and a round trains the updates that the server
applies in it. See `simfl.asynchronous.events`.
"""
