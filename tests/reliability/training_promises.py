"""Faults of training: F1 to F18."""

from reliability.promise import rows

TRAINER, RANKS = "training/test_trainer.py", "training/test_distributed.py"
STORE, DISK = "checkpoint/test_store.py", "reliability/test_disk_faults.py"

TRAINING = rows({
    "F1": (
        "A run that is killed at random steps and resumed ends with the weights of one that was not, bit for bit",
        f"{TRAINER}::test_killed_at_random_moments_a_run_ends_the_same",
        f"{TRAINER}::test_resumed_equals_uninterrupted",
        f"{TRAINER}::test_a_language_model_resumes_exactly",
        "contracts/test_packed.py::test_a_packed_run_resumes_exactly",
        "training/test_scst.py::test_a_resumed_run_ends_with_the_same_weights",
        "data/test_augmentation.py::test_resumed_equals_uninterrupted",
    ),
    "F2": (
        "If the process is killed at any write, sync or rename of a save, the newest complete checkpoint "
        "remains and loads",
        f"{DISK}::test_a_fault_at_every_call_of_a_save_leaves_a_whole_checkpoint",
    ),
    "F3": (
        "After SIGTERM or SIGINT, training saves a checkpoint and exits within 10 seconds; a resumed run "
        "ends with the same weights",
        f"{TRAINER}::test_a_signal_saves_and_ends_the_command",
        f"{TRAINER}::test_resumed_equals_uninterrupted",
        f"{TRAINER}::test_other_signals_save_too",
        f"{RANKS}::test_a_signal_to_one_rank_stops_all_and_the_run_resumes_exactly",
    ),
    "F4": (
        "A full disk ends the run with exit code 1; the previous checkpoint is intact, and the run resumes from it",
        f"{TRAINER}::test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint",
        f"{TRAINER}::test_an_error_of_the_disk_names_its_remedy_and_loses_nothing",
        f"{STORE}::test_a_full_disk_leaves_the_old_checkpoint",
        "cli/test_cli.py::test_a_full_disk_is_a_short_error",
    ),
    "F5": (
        "A run folder that cannot be written is refused before the first step; if the folder is removed "
        "during training, the run ends at the next step",
        f"{TRAINER}::test_a_folder_that_cannot_be_written_is_refused_before_any_work",
        f"{TRAINER}::test_a_folder_that_is_removed_while_it_is_trained_in_is_noticed_at_once",
        f"{DISK}::test_a_fault_at_every_call_of_a_save_leaves_a_whole_checkpoint",
    ),
    "F6": (
        "A checkpoint with a file truncated at any of 200 places is refused, and the previous one is used",
        f"{STORE}::test_every_truncation_is_detected",
        f"{STORE}::test_the_newest_intact_checkpoint_is_found",
        f"{TRAINER}::test_a_damaged_checkpoint_is_skipped",
    ),
    "F7": (
        "A flipped bit at any of 200 places of every file of a checkpoint is detected",
        f"{STORE}::test_every_flipped_bit_is_detected",
    ),
    "F8": (
        "A changed manifest, swapped files, file names that lead out of the folder, and links are refused",
        f"{STORE}::test_tampering_is_refused",
        f"{STORE}::test_a_checkpoint_under_the_name_of_another_step_is_refused",
    ),
    "F9": (
        "A pickle is never executed, whatever its name",
        f"{STORE}::test_a_pickle_is_never_opened",
        "test_package.py::test_no_source_unpickles_or_evaluates",
    ),
    "F10": (
        "A tokenizer that the model was not trained with is refused before any weight is copied",
        "inference/test_forged_checkpoints.py::test_a_forged_checkpoint_is_refused",
        "inference/test_forged_checkpoints.py::test_another_tokenizer_is_refused_before_any_weight_is_copied",
    ),
    "F11": (
        "A loss or gradient that is not finite stops the run (exit code 3) or is skipped, as the recipe says; "
        "the last good checkpoint is kept",
        f"{TRAINER}::test_a_nan_loss_stops_the_run",
        f"{TRAINER}::test_a_nan_loss_is_skipped",
        f"{TRAINER}::test_a_nan_loss_is_not_validated",
    ),
    "F12": (
        "When memory runs out, the message names the shape of the batch and a remedy, and no weight has changed",
        f"{TRAINER}::test_out_of_memory_names_the_batch_and_changes_nothing",
    ),
    "F13": (
        "A run that torchrun restarts after a rank was killed ends with the same weights",
        f"{RANKS}::test_after_a_killed_rank_torchrun_restarts_to_the_same_weights",
    ),
    "F14": (
        "If a rank hangs, the whole job ends within the timeout",
        f"{RANKS}::test_a_hanging_rank_ends_the_run_in_time",
        f"{RANKS}::test_a_frozen_rank_ends_the_whole_job",
        f"{RANKS}::test_missing_ranks_are_reported_in_time",
    ),
    "F15": (
        "Checkpoints of 1, 2 or 4 ranks are resumed by 1, 2 or 4 with the same losses, "
        "and each example is seen once per epoch",
        f"{RANKS}::test_four_processes_and_checkpoints_between_one_two_and_four",
        f"{RANKS}::test_one_process_resumes_the_checkpoint_of_two",
        f"{RANKS}::test_two_processes_have_the_loss_curve_of_one",
        f"{RANKS}::test_ranks_see_each_example_once",
        "data/test_batching.py::test_each_example_once_within_the_budget",
        "data/test_batching.py::test_ranks_share_each_update",
    ),
    "F16": (
        "The clock, Python's hash seed, the locale and the number of workers do not change the weights; "
        "another seed does",
        f"{TRAINER}::test_the_environment_changes_nothing",
        "data/test_images.py::test_the_number_of_threads_changes_nothing",
        f"{TRAINER}::test_another_seed_gives_other_weights",
    ),
    "F17": (
        "A data worker that fails or disappears is reported, and a resumed run ends with the same weights",
        f"{TRAINER}::test_a_failing_prefetch_thread_is_reported_and_the_run_resumes",
        "data/test_batching.py::test_a_thread_that_disappears_is_reported",
    ),
    "F18": (
        "Data that changed since the checkpoint are refused unless allowed; "
        "checkpoints of every release load with the recorded loss",
        f"{TRAINER}::test_changed_data_are_refused",
        f"{TRAINER}::test_changed_data_are_allowed_when_asked_for",
        "checkpoint/test_golden.py::test_a_golden_checkpoint_has_the_recorded_loss_and_logits",
        "checkpoint/test_golden.py::test_this_version_has_a_checkpoint_of_every_family",
        "checkpoint/test_golden.py::test_changed_weights_are_noticed",
    ),
})  # fmt: skip
