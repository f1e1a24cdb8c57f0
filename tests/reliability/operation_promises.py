"""The server under attack, and processes beside each other: P1 to P19."""

from reliability.promise import rows

OPERATION = rows(
    {
        "P1": (
            "No request, alone or in any legal combination of options, makes the server exceed its "
            "memory budget or end",
            "serving/test_search_limits.py::test_no_request_takes_more_than_the_budget",
            "serving/test_search_limits.py::test_a_search_that_needs_more_than_the_budget_is_refused",
            "generation/test_search_memory.py::test_the_estimate_is_at_least_what_a_search_takes_and_at_most_twice_as_much",
            "generation/test_search_memory.py::test_the_estimate_counts_the_attention_of_outputs",
            "generation/test_search_memory.py::test_the_estimate_counts_phrases_and_their_automaton",
            "serving/test_search_limits.py::test_the_attention_of_outputs_counts",
        ),
        "P2": (
            "While a request with a long input is computed, the requests of other clients are "
            "answered, whatever its route",
            "serving/test_blocking.py::test_every_route_answers_others_while_a_long_input_is_read",
            "serving/test_blocking.py::test_several_long_computations_of_a_client_hold_up_none",
            "serving/test_blocking.py::test_a_wide_search_leaves_room_to_others",
        ),
        "P3": (
            "A deadline or a closed connection ends any computation",
            "serving/test_blocking.py::test_a_deadline_ends_any_computation",
            "serving/test_blocking.py::test_a_closed_connection_ends_any_computation",
            "model/test_rnn_pieces.py::test_a_long_input_can_be_interrupted_within_a_second",
            "model/test_rnn_pieces.py::test_an_interrupted_input_is_read_no_further",
        ),
        "P4": (
            "A client never raises a limit of the operator",
            "serving/test_blocking.py::test_a_request_lowers_the_limit_of_inputs_and_never_raises_it",
        ),
        "P5": (
            "SIGTERM ends the process after the drain time, whatever it computes; a second signal "
            "ends it at once",
            "serving/test_process_end.py::test_a_signal_ends_a_server_whose_engine_does_not_answer",
            "serving/test_process_end.py::test_a_second_signal_ends_a_server_at_once",
            "serving/test_process_end.py::test_a_signal_ends_a_server_that_reads_a_long_input",
        ),
        "P6": (
            "/health/ready turns false when the scheduler does not answer",
            "serving/test_process_end.py::test_ready_turns_false_and_true_again",
            "serving/test_process_end.py::test_front_ends_are_not_ready_while_the_engine_process_is_silent",
            "serving/test_blocking.py::test_ready_turns_false_while_the_engine_does_not_answer",
        ),
        "P7": (
            "On a loopback address, foreign host names are refused; /admin and the studio's routes "
            "cannot be used by pages of another site",
            "serving/test_hosts.py::test_a_page_whose_name_points_here_gets_no_answer",
            "serving/test_hosts.py::test_a_page_of_another_origin_uses_neither_admin_nor_studio",
            "serving/test_hosts.py::test_a_form_of_another_site_is_refused",
            "serving/test_hosts.py::test_a_star_without_keys_is_told_and_does_not_open_the_administration",
            "serving/test_hosts.py::test_a_listed_name_is_answered_and_no_other",
            "serving/test_rebinding_browser.py::test_a_page_of_another_site_reads_nothing_and_runs_nothing",
        ),
        "P8": (
            "A client with 400 connections leaves another client its share of the queue",
            "serving/test_fair_share.py::test_four_hundred_connections_leave_another_client_its_share",
            "serving/test_job_queue.py::test_a_client_that_fills_the_queue_leaves_others_their_share",
            "serving/test_job_queue.py::test_a_light_client_is_not_refused_while_a_heavy_one_always_asks_for_more",
        ),
        "P9": (
            "Retry-After is within a factor of 3 of the time after which there is room",
            "serving/test_job_queue.py::test_the_time_to_try_again_is_within_a_factor_of_three",
            "serving/test_job_queue.py::test_time_without_jobs_is_not_counted",
            "serving/test_job_queue.py::test_a_blocked_scheduler_is_not_expected_to_end_within_a_second",
        ),
        "P10": (
            "After SIGTERM, no new connection hangs or is reset, also with front-end processes",
            "serving/test_accepting.py::test_every_new_client_is_answered_or_refused_after_a_signal",
        ),
        "P11": (
            "A reader of stderr that stalls stops nothing: lines of the log are dropped and counted",
            "serving/test_unread_log.py::test_a_log_that_nobody_reads_stops_nothing",
            "serving/test_unread_log.py::test_lines_that_were_dropped_are_counted_in_the_metrics",
            "core/test_log_output.py::test_lines_that_nobody_reads_are_dropped_and_counted",
        ),
        "P12": (
            "An empty host and blank keys are refused",
            "serving/test_serve.py::test_a_host_from_an_empty_variable_does_not_open_all_interfaces",
            "serving/test_serve.py::test_blank_keys_of_the_environment_do_not_let_everyone_in",
        ),
        "P13": (
            "Malformed HTTP (lengths, chunks, half-closed connections, upgrades, pipelines) gets the "
            "right status and never a traceback",
            "serving/test_malformed_http.py::test_every_request_gets_the_right_status_and_none_a_traceback",
        ),
        "P14": (
            "Memory returns after large images and long outputs",
            "serving/test_search_limits.py::test_memory_comes_back_after_large_searches",
            "data/test_image_memory.py::test_large_images_take_the_memory_of_one_and_give_it_back",
        ),
        "P15": (
            "Scores are equal whatever the batch, for every option",
            "serving/test_scores_in_batches.py::test_scores_are_equal_whatever_the_batch",
            "serving/test_scores_in_batches.py::test_every_option_is_listed",
        ),
        "P16": (
            "Eight processes that prepare equal data at once all succeed, with one copy",
            "data/test_python_data_together.py::test_eight_processes_prepare_equal_data_at_once",
        ),
        "P17": (
            "Several users of the studio, with edits and long inputs at once: no exception, and each "
            "gets its answers",
            "serving/test_blocking.py::test_several_users_of_the_studio_get_their_answers_at_once",
            "studio/test_studio_users.py::test_users_of_the_studio_do_not_disturb_each_other",
        ),
        "P19": (
            "Nothing is lost in silence: unknown words, refused and truncated lines, outputs that "
            "were cut and options that an export cannot express are counted or named",
            "cli/test_predict_summary.py::test_unknown_words_of_inputs_are_counted",
            "cli/test_predict_summary.py::test_unknown_words_of_outputs_are_shown_and_counted",
            "cli/test_predict_summary.py::test_tabs_are_told_where_a_model_reads_one_text",
            "cli/test_cli_predict.py::test_a_line_that_is_too_long_loses_no_other",
            "cli/test_cli_predict.py::test_outputs_that_reach_their_limit_are_counted",
            "data/test_labels_that_are_none.py::test_numbers_are_refused",
            "interop/test_page_options.py::test_every_option_is_in_one_of_the_tables",
            "interop/test_page_options.py::test_options_that_a_page_does_not_have_are_refused",
        ),
    }
)
