//! Bounded, repeatable fuzzing on the stable compiler: the targets of `fuzz/targets.rs`, which cargo-fuzz runs for
//! longer.
//!
//! A target has its invariants in the function that reads the input. This table adds the claims about whole sets of
//! inputs. A new parser needs a line in `fuzz/targets.rs`, a `[[bin]]` in `fuzz/Cargo.toml` and a line here; a test
//! fails otherwise.

mod mutation;
mod seeds;
#[path = "../../fuzz/targets.rs"]
mod targets;

use std::collections::BTreeSet;
use std::path::Path;

use crate::tidy::sources;

pub use mutation::mutate;

/// The outcome for inputs that are made from the seeds, which are all accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// All of them are refused.
    Refused,
    /// Some are accepted, and some refused.
    Mixed,
}

/// The seeds of a target and the expected outcomes.
struct Plan {
    target: &'static str,
    /// Inputs that the parser accepts.
    seeds: fn() -> Vec<Vec<u8>>,
    /// The fate of every proper beginning of a seed that is not empty.
    cut: Fate,
    /// The fate of a seed with a few changes.
    changed: Fate,
    /// The number of changed seeds to try.
    mutations: u64,
}

/// The most beginnings of a seed that are tried.
const CUTS_MAX: usize = 400;

macro_rules! fuzzed {
    ($($test:ident: $target:ident, cut $cut:ident, changed $changed:ident, $mutations:literal;)*) => {
        const PLANS: &[Plan] = &[$(Plan {
            target: stringify!($target),
            seeds: seeds::$target,
            cut: Fate::$cut,
            changed: Fate::$changed,
            mutations: $mutations,
        }),*];

        $(#[test]
        fn $test() {
            check(PLANS.iter().find(|plan| plan.target == stringify!($target)).unwrap());
        })*
    };
}

fuzzed! {
    a_month_of_accounts_is_written_as_it_was_read: account_month, cut Mixed, changed Mixed, 20_000;
    a_request_in_json_is_written_as_it_was_read: json, cut Refused, changed Mixed, 20_000;
    a_binary_request_is_written_as_it_was_read: binary, cut Mixed, changed Mixed, 20_000;
    a_request_of_grpc_is_measured_and_its_tensors_fill_their_shapes: grpc_request, cut Mixed, changed Mixed, 50_000;
    a_refusal_of_the_repositorys_routes_is_short_and_the_callers_fault: repository_call, cut Refused, changed Mixed, 20_000;
    a_refusal_of_feasts_routes_is_short_and_the_callers_fault: feast, cut Refused, changed Mixed, 20_000;
    a_request_for_embeddings_is_a_few_texts_or_a_short_refusal: embeddings_request, cut Refused, changed Mixed, 20_000;
    a_document_of_an_analysis_is_no_larger_than_its_request: analyze_request, cut Mixed, changed Mixed, 20_000;
    any_tokenizer_makes_as_many_tokens_as_it_may_or_is_refused: tokenizer, cut Refused, changed Mixed, 2_000;
    a_form_gives_the_same_key_whole_or_from_its_start: vision_form, cut Mixed, changed Mixed, 20_000;
    headers_give_a_deadline_ahead_and_a_key_without_spaces: headers, cut Mixed, changed Mixed, 50_000;
    an_api_key_has_one_form: api_key, cut Refused, changed Mixed, 20_000;
    a_sign_in_code_and_the_halves_of_a_session_have_one_form: sign_in, cut Mixed, changed Mixed, 20_000;
    the_names_of_a_certificate_are_names_and_not_too_many: certificate, cut Refused, changed Mixed, 20_000;
    a_backup_of_a_box_has_one_form_and_leads_out_of_no_folder: box_backup, cut Refused, changed Refused, 20_000;
    a_join_file_is_of_its_platform_or_refused: join_file, cut Mixed, changed Mixed, 2_000;
    a_question_is_of_its_platform_or_refused: question, cut Refused, changed Mixed, 2_000;
    a_photograph_has_a_byte_for_each_colour_of_each_pixel: photograph, cut Mixed, changed Mixed, 60;
    a_jpeg_that_is_scaled_down_has_the_size_that_the_library_finds: scaled_jpeg, cut Refused, changed Mixed, 60;
    rows_of_a_table_have_a_cell_of_each_column: table_rows, cut Refused, changed Mixed, 50_000;
    rows_of_csv_are_the_same_however_they_are_cut: csv_rows, cut Mixed, changed Mixed, 20_000;
    a_pdf_is_opened_or_refused: pdf, cut Mixed, changed Mixed, 1_000;
    the_xml_of_an_invoice_has_bounded_values: invoice_xml, cut Refused, changed Mixed, 20_000;
    a_page_of_a_tiff_has_three_bytes_a_pixel: tiff, cut Mixed, changed Mixed, 5_000;
    a_page_of_a_bitmap_has_three_bytes_a_pixel: bitmap, cut Mixed, changed Mixed, 300;
    a_searchable_pdf_has_the_pages_of_its_document: searchable_pdf, cut Mixed, changed Mixed, 500;
    what_a_step_of_a_page_gives_is_as_much_as_was_asked_for: step_result, cut Refused, changed Mixed, 20_000;
    what_a_process_of_models_says_is_written_as_it_was_read: child_message, cut Refused, changed Mixed, 50_000;
    boxes_of_a_document_lie_on_its_page_whatever_the_models_say: document_steps, cut Mixed, changed Mixed, 1_000;
    what_the_process_of_pages_says_is_written_as_it_was_read: page_messages, cut Mixed, changed Mixed, 20_000;
    lines_of_a_text_layer_lie_on_the_page: text_layer, cut Mixed, changed Mixed, 20_000;
    a_feature_value_is_written_as_it_was_read: feature_values, cut Mixed, changed Mixed, 50_000;

    packets_of_a_broker_are_the_same_however_they_are_cut: mqtt_packets, cut Mixed, changed Mixed, 50_000;
    a_filter_matches_as_its_overlaps_and_templates_say: topics, cut Mixed, changed Mixed, 50_000;
    rows_of_a_message_keep_their_shape_and_refusals_are_short: message, cut Refused, changed Mixed, 5_000;
    conditions_on_a_message_are_written_as_they_were_read: conditions, cut Mixed, changed Mixed, 20_000;
    a_bare_value_is_one_of_its_kind_or_a_short_refusal: bare_value, cut Mixed, changed Mixed, 50_000;

    an_answer_to_a_cameras_challenge_can_be_sent_and_hides_the_password: camera_login, cut Mixed, changed Mixed, 20_000;
    a_photograph_has_a_size_by_its_header: picture_size, cut Mixed, changed Mixed, 500;

    a_value_of_a_table_is_exported_as_it_was_imported: csv, cut Mixed, changed Mixed, 20_000;
    a_value_of_json_lines_is_exported_as_it_was_imported: json_lines, cut Mixed, changed Mixed, 20_000;
    words_of_a_trial_are_written_as_they_were_read_and_the_last_are_short: trial_report, cut Mixed, changed Mixed, 20_000;

    a_model_config_is_written_as_it_was_read: model_toml, cut Mixed, changed Mixed, 5_000;
    an_onnx_file_names_no_file_outside_its_folder: onnx, cut Mixed, changed Mixed, 20_000;
    an_ir_is_read_or_for_no_runtime: ir, cut Mixed, changed Mixed, 5_000;
    a_tflite_file_gives_numbers_and_names_within_bounds: tflite, cut Mixed, changed Mixed, 20_000;
    the_same_declarations_are_the_same_views: feature_views, cut Mixed, changed Mixed, 3_000;

    metadata_says_what_was_signed: metadata, cut Refused, changed Mixed, 2_000;
    a_manifest_stays_within_its_bounds: manifest, cut Refused, changed Mixed, 20_000;
    a_release_names_its_files_once_and_in_its_folder: release_description, cut Refused, changed Mixed, 20_000;
    a_model_of_a_catalogue_stays_in_its_folder: catalogue, cut Refused, changed Mixed, 20_000;
    an_uploaded_archive_leads_out_of_no_folder: upload, cut Mixed, changed Mixed, 20_000;
    only_an_answer_of_2xx_opens_a_way_through_a_proxy: proxy_answer, cut Mixed, changed Mixed, 20_000;
    a_bundle_is_written_as_it_was_read: audit_bundle, cut Mixed, changed Mixed, 20_000;
    a_record_is_written_as_it_was_read: audit_record, cut Refused, changed Mixed, 20_000;
    the_path_of_a_tile_has_one_form_and_leads_out_of_no_folder: audit_path, cut Mixed, changed Mixed, 20_000;
    a_checkpoint_says_what_was_signed: audit_checkpoint, cut Refused, changed Refused, 10_000;
    a_proof_holds_for_its_record_alone: audit_proof, cut Mixed, changed Mixed, 10_000;
    a_certificate_is_written_as_it_was_read: audit_certificate, cut Refused, changed Mixed, 10_000;

    trusted_files_are_as_they_were_written: trusted_files, cut Refused, changed Refused, 20_000;
    a_store_of_keys_is_written_as_it_was_read: key_store, cut Refused, changed Mixed, 20_000;
    a_kept_manifest_is_of_this_fleet_and_this_repository: kept_manifest, cut Refused, changed Mixed, 20_000;
    states_of_updates_are_written_as_they_were_read: update_states, cut Refused, changed Mixed, 20_000;
    the_records_of_loads_are_written_as_they_were_read: load_records, cut Refused, changed Mixed, 20_000;
    a_profile_is_written_as_it_was_read: profile, cut Refused, changed Mixed, 20_000;
    counts_of_what_went_out_are_written_as_they_were_read: egress_counts, cut Refused, changed Mixed, 20_000;
    only_sealed_bytes_open: sealed, cut Refused, changed Refused, 20_000;
    only_a_sealed_file_opens_and_from_its_beginning: sealed_file, cut Refused, changed Refused, 20_000;
    a_line_of_master_keys_is_a_key: master_keys, cut Mixed, changed Mixed, 20_000;
    entries_of_a_journal_come_once_in_order_and_are_written_as_read: journal, cut Refused, changed Mixed, 20_000;
    a_snapshot_is_written_as_it_was_read_and_never_whole_without_its_end: snapshot, cut Mixed, changed Mixed, 20_000;
    a_mark_of_pushes_is_read_only_as_it_is_written: acknowledged, cut Refused, changed Refused, 20_000;
    entity_profiles_are_written_as_they_were_read: entity_profiles, cut Refused, changed Mixed, 5_000;
    erased_entities_are_written_as_they_were_read: erased_entities, cut Refused, changed Mixed, 20_000;
    a_catalog_is_read_only_as_it_is_written: feature_catalog, cut Refused, changed Mixed, 20_000;
    files_of_entity_keys_are_written_as_they_were_read: feature_keys, cut Refused, changed Mixed, 50_000;
    rows_and_records_are_written_as_they_were_read: feature_records, cut Refused, changed Mixed, 50_000;
    watches_are_written_as_they_were_read: drift_watch, cut Refused, changed Mixed, 20_000;
    aggregates_are_written_as_they_were_read_and_take_any_event: window, cut Refused, changed Mixed, 3_000;
    a_record_of_figures_is_written_as_it_was_read: history_record, cut Refused, changed Refused, 5_000;
    a_query_of_the_history_names_what_there_is: history_query, cut Mixed, changed Mixed, 20_000;
    a_state_of_a_detector_is_written_as_it_was_read: anomaly_state, cut Refused, changed Mixed, 2_000;
}

fn check(plan: &Plan) {
    let run = targets::run(plan.target);
    let seeds = (plan.seeds)();
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    assert!(!seeds.is_empty());
    for seed in &seeds {
        assert!(run(seed), "{} refuses its seed {}", plan.target, seed.escape_ascii());
    }

    let cuts = seeds.iter().flat_map(|seed| {
        // The last bytes are those that are most easily not missed.
        (1..seed.len()).rev().step_by(seed.len() / CUTS_MAX + 1).map(|end| &seed[..end])
    });
    let mut counts = Counts::default();
    for cut in cuts.filter(|cut| !seeds.contains(cut)) {
        counts.add(run(cut), plan.cut, cut);
    }

    counts = Counts::default();
    for number in 0..plan.mutations {
        let changed = mutate(number, &seeds);
        // A digit may take its own place.
        if !seeds.contains(&changed.as_slice()) {
            counts.add(run(&changed), plan.changed, &changed);
        }
    }
    if plan.changed == Fate::Mixed {
        // Otherwise only one half of the parser is fuzzed.
        assert!(counts.accepted > 0 && counts.refused > 0, "{}: {counts:?}", plan.target);
    }
}

#[derive(Debug, Default)]
struct Counts {
    accepted: usize,
    refused: usize,
}

impl Counts {
    fn add(&mut self, is_accepted: bool, fate: Fate, input: &[u8]) {
        assert!(!is_accepted || fate == Fate::Mixed, "it is accepted: {}", input.escape_ascii());
        *if is_accepted { &mut self.accepted } else { &mut self.refused } += 1;
    }
}

#[test]
fn every_target_has_a_binary_and_seeds() {
    let targets: Vec<_> = targets::TARGETS.iter().map(|(name, _)| *name).collect();
    let plans: BTreeSet<_> = PLANS.iter().map(|plan| plan.target).collect();
    assert_eq!(plans, targets.iter().copied().collect());

    let manifest = std::fs::read_to_string(repository().join("fuzz/Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let binaries = manifest["bin"].as_array().unwrap();
    let names: Vec<_> = binaries.iter().map(|binary| binary["name"].as_str().unwrap()).collect();
    assert_eq!(names, targets, "[[bin]] in fuzz/Cargo.toml");
    assert!(binaries.iter().all(|binary| binary["path"].as_str() == Some("target.rs")));
}

#[test]
fn every_fuzz_function_of_the_library_is_a_target() {
    let table = std::fs::read_to_string(repository().join("fuzz/targets.rs")).unwrap();
    let mut functions: Vec<_> = sources().iter().flat_map(|(_, text)| fuzz_functions(text)).collect();
    assert!(functions.len() >= 30, "{functions:?}");
    functions.retain(|name| !table.contains(&format!("::{name}")) && !table.contains(&format!(" {name})")));
    assert_eq!(functions, [""; 0], "add them to fuzz/targets.rs");
}

/// A daemon needs none of them, and an assertion of one must never run in it.
#[test]
fn no_build_without_the_feature_has_a_fuzz_function() {
    const CONDITION: &str = r#"#[cfg(any(test, feature = "fuzzing"))]"#;
    let mut count = 0;
    for (file, text) in sources() {
        // A file of this name is a module, and its declaration has the condition.
        let is_module = Path::new(&file).ends_with("fuzz.rs");
        for (before, line) in text.lines().zip(text.lines().skip(1)) {
            let item = line.trim_start();
            let item = item.split_once(' ').filter(|(word, _)| word.starts_with("pub")).map_or(item, |(_, item)| item);
            let is_function = item.starts_with("fn fuzz") && !is_module;
            if is_function || item.starts_with("mod fuzz") {
                count += 1;
                assert_eq!(before.trim(), CONDITION, "before {line:?} in src/{file}");
            }
        }
    }
    assert!(count >= 40, "{count}");
}

/// The public functions that are made for fuzzers: `fuzz…`, but for those that others of them call.
fn fuzz_functions(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.strip_prefix("pub fn fuzz")?.split_once('('));
    names.map(|(rest, _)| format!("fuzz{rest}")).collect()
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
