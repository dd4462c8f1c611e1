# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tests that do not apply to the portable engine (SPAWNFD_PORTABLE=1), by reason.

A pattern is the name of a file, or the id of a test below this directory, with `*` and `?`. A
pattern that matches nothing fails the run.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

EXCLUDED: dict[str, tuple[str, ...]] = {
    "remote connections are not provided": (
        "test_ray.py",
        "test_remote.py",
        "test_remote_files.py",
        "test_remote_places.py",
    ),
    "a test that waits for the thread of the native engine": (
        "test_job_loops.py::test_many_results_need_few_wakeups",
    ),
    "sessions are not provided": (
        "test_random_interrupts.py::test_async_session",
        "test_random_interrupts.py::test_session",
        "test_session.py",
        "test_session_beside.py",
        "test_session_loops.py",
        "test_session_text.py",
        "test_typing.py::test_a_stream_needs_yield_after",
        "test_typing.py::test_a_yielded_job_is_narrowed*",
    ),
    "templates, warm starts, snapshots and spawn() are not provided": (
        "test_audit.py",
        "test_child.py",
        "test_demo.py::test_module_claims_no_warm_start_if_all_starts_are_cold",
        "test_demo.py::test_module_prints_the_comparison",
        "test_demo.py::test_repository_and_settings_of_the_caller_have_no_effect",
        "test_errors.py::test_closed_descriptor_of_the_caller_stays_closed[numbers]",
        "test_errors.py::test_relative_path_of_a_template_suggests_absolute_paths",
        "test_fork.py::test_fork_cannot_use_the_parents_jobs",
        "test_fork.py::test_fork_closes_cached_templates",
        "test_fork.py::test_fork_finalizes_its_interpreter",
        "test_interrupt.py::test_ctrl_c_during_wait_leaves_the_child_running",
        "test_interrupt.py::test_handler_that_returns_changes_nothing",
        "test_job.py::test_templates*",
        "test_options.py::test_huge_timeout_of_a_child_means_forever",
        "test_options.py::test_spawn_has_its_own_options*",
        "test_pickle.py::test_errors_are_pickled",
        "test_pickle.py::test_process_bound_objects_are_refused",
        "test_program_paths.py::*[*from_cache]",
        "test_program_paths.py::*[*spawn]",
        "test_program_paths.py::test_template_and_warm_use_relative_parts_of_path",
        "test_program_paths.py::test_template_of_a_home_directory",
        "test_program_paths.py::test_template_refuses_a_relative_path",
        "test_signatures.py::test_default_of_spawn_is_the_same_as_an_omitted_option",
        "test_signatures.py::test_unknown_option_is_refused_with_advice*",
        "test_snapshot.py",
        "test_template.py",
        "warm/*",
    ),
    "the drop-ins for subprocess and asyncio are not provided": (
        "test_asyncio.py",
        "test_cpython_suites.py",
        "test_fork.py::test_fork_while_other_threads_start_programs",
        "test_fork.py::test_install_works_in_a_fork",
        "test_imports.py::test_patched_fork_exec_is_called*",
        "test_imports.py::test_second_import_while_installed*",
        "test_install.py",
        "test_mcp.py::test_stdio_client_of_the_sdk_runs_under_install",
        "test_pickle.py::test_values_are_pickled",
        "test_random_interrupts.py::test_subprocess*",
        "test_subprocess.py",
        "test_subprocess_trouble.py",
    ),
    "actions, sandboxes, limits, terminals and spill files are not provided": (
        "test_actions.py",
        "test_errors.py::test_action_error_carries_the_path*",
        "test_errors.py::test_lost_status_is_reported",
        "test_errors.py::test_messages_say_what_failed",
        "test_imports.py::test_second_import",
        "test_interact.py",
        "test_job.py::test_start_errors*",
        "test_job_input.py::test_terminal_input_and_size*",
        "test_job_sync.py::test_signalled_before_exec",
        "test_job_sync.py::test_spill_file_lives_as_long_as_job_or_result",
        "test_limits.py",
        "test_options.py::test_constant_without_a_meaning[*cannot be combined with stdout]",
        "test_options.py::test_replaced_spill_descriptor_is_left_alone",
        "test_options.py::test_spill_file_lives_as_long_as_its_result*",
        "test_options.py::test_wrong_options[*Descriptor*",
        "test_output.py::test_to_dict_can_be_written_as_json*",
        "test_pickle.py::test_results_are_pickled",
        "test_pickle.py::test_unpickled_result_does_not_own_the_spill_file",
        "test_run.py::test_open_of_a_fifo_*",
        "test_sandbox.py",
        "test_signatures.py::test_default_is_the_same_as_an_omitted_option[given2*",
        "test_streaming.py::test_wait_for_raises_the_error_of_a_failed_start*",
        "test_terminal.py",
    ),
    "the pages also show what is not provided": ("test_guides.py::test_example_runs*",),
    "the engine controls the process group only": (
        "test_cases.py::test_case[*a daemon that holds the output is a leftover of tree group]",
        "test_cases.py::test_case[*a daemon that holds the output of tree group is detached]",
        "test_options.py::test_guard_may_miss_processes_of_a_new_session*",
        "test_options.py::test_pid_namespace_kills_the_whole_tree*",
        "test_owner.py",
        "test_run.py::test_drain_names_processes_with_the_pipe_open",
    ),
    "the engine has no pidfd, so it skips the group of a program that other code has reaped": (
        "test_unkillable.py::test_run_ends_if_sigkill_has_no_effect*",
    ),
    "the engine's thread reaps the program while a signal handler of the caller runs": (
        "test_reaped_by_host.py",
    ),
    '`started` is "portable"': (
        "test_cases.py::test_case[*the result has output, status and usage]",
        "test_output.py::test_to_dict_equals_the_json_of_the_command*",
    ),
    "the engine does not notice that the application has closed or replaced its descriptors": (
        "test_job_loops.py::test_replaced_queue_descriptor_is_noticed*",
        "test_job_sync.py::test_queue_descriptors_closed_and_replaced*",
        "test_job_sync.py::test_queue_does_not_use_a_closed_standard_stream",
    ),
    "threads drive the runs: they cannot start while the interpreter ends, and a thread that was "
    "joined may still be counted at a fork": (
        "test_fork.py::test_idle_engine_thread_ends_before_a_fork*",
        "test_run.py::test_run_during_interpreter_shutdown*",
    ),
    "only native code has it: its GIL, descriptors, system calls, stubs, and formats": (
        "test_imports.py::test_subinterpreter_is_refused",
        "test_job_sync.py::test_read_releases_the_gil",
        "test_killing_filters.py",
        "test_pickle.py::test_invalid_state_is_refused",
        "test_run.py::test_the_import_reserves_low_descriptor_numbers",
        "test_stubs.py",
        "test_system_calls.py",
    ),
}
# The cases of tests/data/cases.json that have one of these keys, or pass one of these options, do
# not apply, for the same reasons.
CASE_KEYS = ("session", "template")
CASE_OPTIONS = ("actions", "limits", "sandbox", "spill", "terminal")
CASE_TREES = ("guard", "subreaper")
PATTERNS = [pattern for patterns in EXCLUDED.values() for pattern in patterns]
TESTS = Path(__file__).parent


def _file_of(pattern: str) -> str:
    return pattern.partition("::")[0]


def excludes_file(path: Path) -> bool:
    """Whether no test of a file applies."""
    if not path.is_relative_to(TESTS):
        return False
    name = path.relative_to(TESTS).as_posix()
    return any("::" not in pattern and fnmatchcase(name, pattern) for pattern in PATTERNS)


def _case_feature(case: dict[str, Any]) -> str | None:
    """Returns what of a case does not apply."""
    options: dict[str, Any] = {}
    for step in case.get("steps", [case]):
        options.update(step.get("options", {}))
    found = [key for key in CASE_KEYS if key in case]
    found += [name for name in CASE_OPTIONS if options.get(name) is not None]
    found += [tree for tree in CASE_TREES if options.get("tree") == tree]
    return found[0] if found else None


def applying(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the cases that apply. Fails if a key or an option excludes no case."""
    used = {_case_feature(case) for case in cases}
    unused_features = {*CASE_KEYS, *CASE_OPTIONS, *CASE_TREES} - used
    assert not unused_features, f"portable_exclusions.py: no case has {unused_features}"
    return [case for case in cases if _case_feature(case) is None]


def matching(nodeid: str) -> list[str]:
    """Returns the patterns that match a test, by its id or its file."""
    name = nodeid.removeprefix("tests/")
    file = _file_of(name)
    # A "[" in a pattern is not the beginning of a set of characters.
    patterns = [(pattern, pattern.replace("[", "[[]")) for pattern in PATTERNS]
    return [p for p, escaped in patterns if fnmatchcase(name if "::" in p else file, escaped)]


def unused(nodeids: list[str]) -> list[str]:
    """Returns the patterns that match neither a file nor one of these tests.

    A pattern counts only if its file was collected.
    """
    used = {pattern for nodeid in nodeids for pattern in matching(nodeid)}
    collected = {_file_of(nodeid.removeprefix("tests/")) for nodeid in nodeids}
    found: list[str] = []
    for pattern in PATTERNS:
        if "::" not in pattern:
            if not any(TESTS.glob(pattern)):
                found.append(pattern)
        elif pattern not in used and _file_of(pattern) in collected:
            found.append(pattern)
    return found
