# SPDX-License-Identifier: Apache-2.0
"""A laboratory of crashes: kill, cut the power, fill the disk, at any system call of an operation.

ptrace     <- kernel: stop a child at chosen system calls, look, change, kill
calls      what a system call touches: names, files, nothing
model      pure: a log of changes, and every state that a power loss may leave of it
trees      real folders <-> the model's trees
recorder   calls -> log
tracer     run an operation in a child, under a plan
explore    scenarios, and the proofs (`docs/durability.md` says what they prove)
crew       all scenarios' proofs, on all processors
"""
