"""Bad inputs: texts (B1 to B14), images (B15 to B22), requests and pages (B23 to B26)."""

from reliability.promise import rows

TEXT, CORPUS, IMAGES = "data/test_text.py", "data/test_corpus.py", "data/test_images.py"
LINES, EXACT = f"{TEXT}::test_lines", f"{CORPUS}::test_unusual_texts_are_kept_exactly"
REFUSED = f"{IMAGES}::test_unreadable_files_are_refused_by_name"

INPUTS = rows({
    "B1": (
        "An empty file is refused as training data; as input it gives no output line",
        f"{CORPUS}::test_empty_files_are_refused", LINES,
    ),
    "B2": (
        "Empty lines are kept: there are as many output lines as input lines",
        "cli/test_cli.py::test_predict_answers_line_for_line", LINES, EXACT,
    ),
    "B3": (
        "A line of 1 MB is read; a line without an end is refused before it fills the memory",
        LINES, EXACT,
        f"{TEXT}::test_a_line_of_any_length_is_refused_before_it_fills_the_memory",
        "cli/test_cli.py::test_a_line_that_is_too_long_is_named",
    ),
    "B4": (
        "Invalid UTF-8 is refused with its line and byte offset, or replaced if an option says so",
        f"{TEXT}::test_invalid_utf8_is_refused_with_its_position",
        f"{CORPUS}::test_invalid_utf8_is_refused_or_replaced",
        "cli/test_cli.py::test_invalid_utf8_is_named",
    ),
    "B5": ("NUL characters are read as text", LINES, EXACT),
    "B6": (
        "A byte order mark at the beginning of a file is not part of the text",
        LINES, "word_vectors/test_vector_files.py::test_a_byte_order_mark_is_no_part_of_the_header",
    ),
    "B7": (
        "CRLF and a single CR end a line as LF does, also where CR and LF fall into two reads",
        LINES, f"{TEXT}::test_a_line_break_may_fall_between_two_reads",
    ),
    "B8": ("U+2028, NEL and other Unicode line separators do not split a line", LINES, EXACT),
    "B9": (
        "Composed and decomposed characters (NFC, NFD) are kept as they are",
        LINES, EXACT, "data/test_tokenizer.py::test_unusual_texts_round_trip",
    ),
    "B10": (
        "Emoji joined by ZWJ are kept whole",
        LINES, EXACT, "data/test_tokenizer.py::test_unusual_texts_round_trip",
        "inference/test_stream.py::test_characters_of_several_tokens_are_yielded_whole",
    ),
    "B11": (
        "Right-to-left text and its control characters are kept in data, and replaced in messages",
        LINES, EXACT, "core/test_sanitize.py::test_unprintable_characters_are_replaced",
        "core/test_sanitize.py::test_ordinary_text_is_shown_as_it_is",
    ),
    "B12": (
        "Parallel files of unequal length are refused with both counts",
        f"{TEXT}::test_parallel_files", f"{CORPUS}::test_unequal_files_are_refused",
        "cli/test_cli.py::test_a_file_beside_the_input_has_as_many_lines",
    ),
    "B13": (
        "A query for which every key is masked gets zeros, not NaN",
        "contracts/test_attention_contracts.py::test_masked_rows_give_zeros",
        "contracts/test_traps.py::test_of_nothing_comes_nothing",
    ),
    "B14": (
        "Sources and targets without any token are encoded, trained on and decoded",
        "contracts/test_models.py::test_an_empty_sequence_has_an_empty_memory",
        "kernels/test_rnn.py::test_empty_targets_and_empty_memory",
        "generation/engines/test_cpu_decoder.py::test_compiled_encoders_with_post_norm_and_empty_sources",
        "training/test_distributed.py::test_a_rank_may_have_no_token_to_mask",
    ),
    "B15": (
        "A truncated image is refused; no pixel is invented",
        f"{IMAGES}::test_a_truncated_file_is_refused_unless_all_pixels_are_there", REFUSED,
    ),
    "B16": (
        "A decompression bomb is refused, also where Pillow would only warn",
        REFUSED, f"{IMAGES}::test_a_decompression_bomb_is_refused_where_warnings_are_errors",
        "data/test_caption_datasets.py::test_a_member_that_unpacks_to_too_much_is_refused",
    ),
    "B17": ("CMYK images have the right colours", f"{IMAGES}::test_cmyk"),
    "B18": ("Images with 16 bits per channel are scaled to 8, not clipped", f"{IMAGES}::test_sixteen_bits_are_scaled"),
    "B19": (
        "Transparent pixels become white, and palette images are converted to colours",
        f"{IMAGES}::test_transparent_pixels_become_white", f"{IMAGES}::test_palettes",
    ),
    "B20": ("All eight EXIF orientations are applied", f"{IMAGES}::test_exif_orientation_is_applied"),
    "B21": ("The first frame of an animation is read", f"{IMAGES}::test_the_first_frame_of_an_animation_is_read"),
    "B22": (
        "Images are recognized by their content, whatever their extension; EPS and empty files are refused",
        f"{IMAGES}::test_the_format_is_recognized_by_content", REFUSED,
        f"{IMAGES}::test_only_regular_files_of_some_size_are_read",
    ),
    "B23": (
        "A request body of 100 MB is refused without being held in memory",
        "serving/test_transport.py::test_a_large_body_is_refused_without_being_kept",
        "serving/test_transport.py::test_the_rest_of_a_refused_body_is_not_taken_for_headers",
        "serving/test_bulk.py::test_a_line_of_100_megabytes_is_not_kept",
    ),
    "B24": (
        "JSON nested 150,000 levels deep is refused",
        "serving/test_transport.py::test_deeply_nested_json_is_refused",
        "serving/test_http.py::test_bad_requests_are_problems",
        "inference/test_forged_checkpoints.py::test_deep_json_is_refused",
    ),
    "B25": (
        "No file path and no URL is accepted in a request",
        "serving/test_reload.py::test_no_path_is_taken_from_a_request",
        "serving/test_http.py::test_bad_requests_are_problems",
        "studio/test_studio.py::test_no_file_is_read_for_a_request",
    ),
    "B26": (
        "20 strings of markup and script are shown as plain text in tokens, names and captions, under a "
        "strict content security policy",
        "views/test_html.py::test_hostile_tokens_stay_inert",
        "views/test_html.py::test_each_hostile_string_stays_inert_as_token_file_name_and_caption",
        "views/test_html.py::test_nothing_else_may_run",
        "views/test_figures.py::test_a_title_cannot_close_its_element",
        "studio/test_studio.py::test_hostile_names_and_inputs_stay_inert",
        "studio/test_studio.py::test_hostile_labels_and_tokens_stay_inert",
        "studio/test_studio.py::test_the_page_has_a_strict_policy_and_nothing_from_elsewhere",
    ),
})  # fmt: skip
