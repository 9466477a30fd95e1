"""Admission: who may start now, who waits, who is turned away.

Today's policy is the simplest real one, a bound on the turns that run on each replica. The unit of
later policies is the session; they stand behind the same `AdmissionPolicy`.
"""
