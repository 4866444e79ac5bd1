// An NCCL without GPUs: what tests load in place of libnccl.so.2, and how they direct it.
//
// The ranks of a communicator are threads of one process. A group of calls is one piece of work of all members' streams
// in the fake driver: done when each of them has come to it, with real arithmetic. As in a real NCCL whose calls do not
// block, a call comes back before its work is in the stream: that happens when somebody asks how it goes on, so whoever
// records an event without asking finds what was there before. What is not allowed is counted and refused: a GPU twice
// in one communicator, ranks that ask for different things, a communicator that was aborted or has work on its way
// already.
#pragma once

extern "C" {

/// As a fresh process has it. Nothing may use the library meanwhile.
void fake_nccl_reset();
void fake_nccl_set_version(int version);
/// The `index`-th call from now on (from 0) of that function answers `code`.
void fake_nccl_fail(const char* function, int index, int code);
/// Communicators of that rank report an error of a stream from now on.
void fake_nccl_break(int rank, int code);
/// Groups that are put into streams from now on never end; communicators made from now on never connect.
void fake_nccl_hang();
/// Calls of that function so far.
int fake_nccl_calls(const char* function);
/// What was done that is not allowed, so far.
int fake_nccl_misuses();
/// Communicators that were neither destroyed nor aborted.
int fake_nccl_alive();
int fake_nccl_aborted();
}
