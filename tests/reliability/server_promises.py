"""The server under bad conditions: S1 to S10."""

from reliability.promise import Promise

SERVER = (
    Promise(
        "S1",
        "At ten times its capacity, the server answers 429 or 503 with Retry-After and no other 5xx, and its "
        "memory stays constant",
        (
            "reliability/test_served_process.py::test_overload_is_refused_and_memory_stays_flat",
            "serving/test_http.py::test_overload_gives_429_and_nothing_else",
            "serving/test_scheduler.py::test_a_full_queue_refuses_and_says_when_to_come_again",
        ),
    ),
    Promise(
        "S2",
        "Batched answers equal single answers",
        (
            "serving/test_scheduler.py::test_any_mixture_of_jobs_is_answered_as_each_alone",
            "generation/engines/test_batch_invariance.py::test_outputs_do_not_depend_on_the_batch",
            "serving/test_http.py::test_answers_are_those_of_predict",
        ),
    ),
    Promise(
        "S3",
        "When a client disconnects, its slot is free at the next step",
        (
            "serving/test_http.py::test_a_disconnected_client_frees_its_slot",
            "serving/test_scheduler.py::test_a_cancelled_job_frees_its_slot_at_the_next_step",
            "reliability/test_served_process.py::test_cancelled_requests_leak_nothing",
            "reliability/test_object_leaks.py::test_no_object_of_a_request_is_left",
        ),
    ),
    Promise(
        "S4",
        "Headers and bodies that never end (Slowloris) are ended by a timeout",
        (
            "serving/test_transport.py::test_slow_headers_and_bodies_are_timed_out",
            "serving/test_transport.py::test_headers_without_end_are_bounded",
        ),
    ),
    Promise(
        "S5",
        "A client that reads slowly delays no other request, and the memory for its answer is bounded",
        (
            "serving/test_http.py::test_a_slow_reader_stalls_nobody",
            "reliability/test_served_process.py::test_readers_that_never_read_stall_nobody",
        ),
    ),
    Promise(
        "S6",
        "A deadline ends a request in the queue and in the batch",
        (
            "serving/test_scheduler.py::test_a_deadline_ends_a_job_in_the_queue_and_in_the_batch",
            "serving/test_http.py::test_a_deadline_gives_504",
            "serving/test_http.py::test_a_deadline_in_a_stream_is_its_last_event",
        ),
    ),
    Promise(
        "S7",
        "After SIGTERM, running requests are answered, new ones are refused, and the exit code is 0",
        (
            "serving/test_serve.py::test_a_server_answers_and_drains",
            "serving/test_scheduler.py::test_stopping_finishes_what_is_in_flight_and_refuses_the_rest",
            "serving/test_workers.py::test_a_signal_ends_all_processes_after_the_requests_in_flight",
        ),
    ),
    Promise(
        "S8",
        "Liveness and readiness are reported separately",
        ("serving/test_http.py::test_a_server_that_stops_is_live_and_not_ready",),
    ),
    Promise(
        "S9",
        "A worker or engine process that is killed is started again; its requests get a 503 that says why",
        (
            "serving/test_workers.py::test_a_killed_worker_is_started_again_and_its_counts_stay",
            "serving/test_workers.py::test_a_killed_engine_is_started_again_and_its_requests_are_told",
        ),
    ),
    Promise(
        "S10",
        "The counts in the metrics equal those of the client",
        (
            "serving/test_server_metrics.py::test_metrics_are_what_a_client_counted",
            "serving/test_server_metrics.py::test_cancellations_and_deadlines_are_counted",
            "serving/test_server_metrics.py::test_reloads_are_counted",
        ),
    ),
)
