"""Compiled code, untrusted files, disks, signals and long use: N1 to N18."""

from reliability.promise import rows

ENGINE, FORGED = "generation/engines/test_cpu_decoder.py", "inference/test_forged_checkpoints.py"
LIBRARY = "generation/engines/test_compiled_library.py"
TRAINER, DISK = "training/test_trainer.py", "reliability/test_disk_faults.py"

PROCESSES = rows({
    "N1": (
        "A compiled library that is planted, of another owner, linked, or in a folder that others can write to "
        "is never loaded; the same holds for Triton's cache",
        f"{LIBRARY}::test_a_library_that_others_could_replace_is_not_loaded",
        f"{LIBRARY}::test_a_truncated_or_planted_library_is_compiled_anew",
        f"{LIBRARY}::test_an_empty_or_relative_cache_home_is_not_used",
        "kernels/test_triton_launch.py::test_a_cache_that_others_could_write_to_is_not_used",
    ),
    "N2": (
        "A compiled library that is truncated or has a flipped bit is detected and compiled again",
        f"{LIBRARY}::test_a_truncated_or_planted_library_is_compiled_anew",
    ),
    "N3": (
        "Compiled code passes AddressSanitizer and UndefinedBehaviorSanitizer, also with ids and lengths out "
        "of range",
        f"{ENGINE}::test_compiled_code_passes_the_sanitizers",
        f"{ENGINE}::test_ids_out_of_range_are_refused",
        f"{ENGINE}::test_states_out_of_range_are_refused",
    ),
    "N4": (
        "A flipped bit in prepared data is detected, and a truncated file is reported, also while it is in use",
        "data/test_corpus.py::test_every_flipped_bit_is_refused",
        "data/test_corpus.py::test_truncated_files_are_refused",
        "data/test_corpus.py::test_a_file_that_is_truncated_while_it_is_mapped_is_refused",
        "data/test_images.py::test_truncated_pixels_are_refused",
    ),
    "N5": (
        "200 forged checkpoints whose hashes agree are refused with exit code 4, each within 10 seconds and 1 GB",
        f"{FORGED}::test_200_checkpoints_with_other_sizes_and_types_are_refused",
        f"{FORGED}::test_forged_checkpoints_are_refused_within_10_seconds_and_1_gb",
        f"{FORGED}::test_a_rewritten_checkpoint_loads",
    ),
    "N6": (
        "A checkpoint can be signed with a key, and is refused if its signature was made with another one",
        "checkpoint/test_signature.py::test_a_signature_is_an_hmac_of_the_manifest",
        "checkpoint/test_signature.py::test_a_forged_checkpoint_has_no_signature",
        "checkpoint/test_signature.py::test_every_flipped_bit_of_a_signature_and_of_the_key_is_noticed",
        "checkpoint/test_signature.py::test_the_command_line_signs_and_verifies_a_run",
    ),
    "N7": (
        "Loading a checkpoint reads and writes no file outside its folder, and downloads nothing",
        "reliability/test_untrusted_checkpoints.py::"
        "test_a_checkpoint_reads_fetches_and_writes_nothing_outside_its_folder",
        "recipe/test_trusted_paths.py::test_paths_of_a_foreign_checkpoint_are_refused",
        "recipe/test_trusted_paths.py::test_a_foreign_checkpoint_fetches_nothing",
    ),
    "N8": (
        "Weights that are not finite, or of another type or shape, are refused",
        f"{FORGED}::test_a_forged_checkpoint_is_refused",
        "checkpoint/test_store.py::test_weights_of_another_model_are_named",
        "training/test_resume_state.py::test_incomplete_optimizer_state_is_refused",
    ),
    "N9": (
        "A second process that trains in the same folder is refused, and files that do not belong to the run "
        "are not touched",
        f"{TRAINER}::test_two_trainings_of_one_folder_are_refused",
        f"{TRAINER}::test_a_folder_of_other_files_is_refused_and_left_alone",
        f"{TRAINER}::test_a_resumed_run_keeps_files_that_are_not_its_own",
    ),
    "N10": (
        "The removal or replacement of a run folder, cache or data file in use is detected, or has no effect",
        f"{TRAINER}::test_a_folder_that_is_removed_while_it_is_trained_in_is_noticed_at_once",
        "reliability/test_training_faults.py::test_a_cache_that_is_removed_while_it_is_trained_on_changes_nothing",
        "reliability/test_training_faults.py::test_a_cache_that_is_removed_while_data_are_prepared_is_told",
        "reliability/test_training_faults.py::test_data_that_are_removed_before_a_resume_are_named",
        "data/test_corpus.py::test_a_file_that_changes_while_it_is_read_is_refused",
    ),
    "N11": (
        "EIO, ENOSPC, EDQUOT, EFBIG, ESTALE, EROFS and short writes at every file call of a save, and a power loss "
        "after each, give an error with its remedy and leave a complete checkpoint that loads",
        f"{DISK}::test_a_fault_at_every_call_of_a_save_leaves_a_whole_checkpoint",
        f"{DISK}::test_every_kind_of_call_is_made_to_fail",
        f"{DISK}::test_after_a_power_loss_at_any_moment_the_newest_whole_checkpoint_loads",
        f"{TRAINER}::test_an_error_of_the_disk_names_its_remedy_and_loses_nothing",
    ),
    "N12": (
        "SIGTERM at any moment ends training within 10 seconds with a checkpoint; SIGHUP and SIGUSR1 save too; "
        "a closed stderr does not end the run",
        "reliability/test_training_faults.py::test_sigterm_at_any_moment_ends_the_command_within_10_seconds",
        f"{TRAINER}::test_a_signal_ends_a_long_validation",
        f"{TRAINER}::test_other_signals_save_too",
        f"{TRAINER}::test_nohup_is_obeyed",
        f"{TRAINER}::test_a_closed_stderr_ends_nothing",
        "cli/test_fuzz.py::test_closed_standard_streams_end_nothing",
    ),
    "N13": (
        "A process that waits for a lock names the holder, and gives up after a time",
        "data/test_corpus.py::test_waiting_for_a_corpus_names_its_maker_and_ends",
        "data/test_corpus.py::test_a_killed_prepare_leaves_no_corpus_and_a_waiting_process_makes_it",
        f"{TRAINER}::test_two_trainings_of_one_folder_are_refused",
    ),
    "N14": (
        "A run that is resumed with another number of threads or processes, another processor, PyTorch or "
        "release warns of it",
        "training/test_resume_state.py::test_a_resume_in_another_environment_says_so",
    ),
    "N15": (
        "Compiled, plain and GPU decoding give the same outputs; memory stays constant over 20,000 predictions",
        f"{ENGINE}::test_search_results_equal_plain_ones",
        f"{ENGINE}::test_compiled_steps_equal_plain_ones",
        "generation/engines/test_static_decoder.py::test_search_results_equal_plain_ones",
        "contracts/test_cuda.py::test_kernels_equal_plain_steps",
        "contracts/test_cuda.py::test_recorded_steps_equal_launched_ones",
        "reliability/test_long_use.py::test_memory_is_flat_over_20_000_predictions",
    ),
    "N16": (
        "No control or direction character of a file reaches a terminal, and none can imitate a line of a message",
        "core/test_sanitize.py::test_messages_hold_no_control_characters_and_no_forged_line",
        "core/test_sanitize.py::test_progress_shows_samples_and_warnings_without_control_characters",
        "core/test_sanitize.py::test_log_records_on_stderr_hold_no_control_characters",
        "core/test_sanitize.py::test_texts_are_exact_in_a_pipe_and_printable_on_a_terminal",
        "data/test_caption_datasets.py::test_the_name_of_a_member_forges_no_message",
    ),
    "N17": (
        "Every option of every verb answers hostile values with a message and no traceback, within 60 "
        "seconds and 4 GB",
        "cli/test_fuzz.py::test_hostile_options_give_a_message_and_no_traceback",
        "cli/test_fuzz.py::test_every_verb_is_fuzzed",
        "cli/test_fuzz.py::test_hostile_input_gives_a_message",
    ),
    "N18": (
        "Dependencies are locked by hash, their licences checked, every pinned version is scanned for known "
        "vulnerabilities (`make audit`, which needs the network: the tests scan with a service of their own), the "
        "wheel is reproducible and has a bill of materials",
        "release/test_lock.py::test_every_pinned_package_is_locked_with_its_hashes",
        "test_package.py::test_the_licence_of_every_extra_is_named",
        "release/test_release_files.py::test_licences_that_are_not_permissive_are_reported",
        "release/test_vulnerabilities.py::test_every_pinned_version_is_scanned_by_make_audit_and_by_ci",
        "release/test_vulnerabilities.py::test_a_vulnerable_version_is_named_with_those_that_mend_it",
        "release/test_vulnerabilities.py::test_what_could_not_be_looked_up_is_no_success",
        "release/test_wheel.py::test_two_builds_are_equal",
        "release/test_wheel.py::test_the_bill_of_materials_names_every_requirement",
    ),
})  # fmt: skip
