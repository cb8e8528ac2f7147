//! The fuzz targets. `target.rs` runs them under libFuzzer, and `tests/it/fuzz.rs` compiles and runs them with the
//! other tests, where each has its seeds.

use ledge::drift::encoding::fuzz_watch;
use ledge::engine::{ir, onnx, tflite};
use ledge::features::window::fuzz_window;
use ledge::features::{fuzz as features, journal, snapshot};
use ledge::identity::api_key::fuzz_key;
use ledge::identity::keys::fuzz_keys;
use ledge::identity::sealing::fuzz as sealing;
use ledge::identity::sign_in::fuzz_sign_in;
use ledge::mqtt::client::fuzz::mqtt_packets;
use ledge::repository::model_config;
use ledge::updates::trust::fuzz as trust;

/// Reads an input, and panics when an invariant does not hold. True when the parser accepts the input.
pub type Run = fn(&[u8]) -> bool;

/// Every parser of foreign bytes.
pub const TARGETS: &[(&str, Run)] = &[
    ("account_month", ledge::accounts::fuzz_stored),
    // Requests.
    ("json", ledge::protocol::fuzz::fuzz_json),
    ("binary", ledge::protocol::fuzz::fuzz_binary),
    ("grpc_request", ledge::grpc::fuzz_request),
    ("repository_call", ledge::protocol::fuzz::fuzz_repository_call),
    ("feast", ledge::protocol::fuzz::fuzz_feast),
    ("vision_form", ledge::protocol::deepstack::fuzz_form),
    ("embeddings_request", ledge::protocol::openai::fuzz_embeddings),
    ("analyze_request", ledge::protocol::document_intelligence::fuzz_analyze_request),
    ("tokenizer", ledge::pipeline::tokenizer::fuzz_tokenizer),
    ("headers", ledge::http::fuzz::fuzz_headers),
    ("api_key", fuzz_key),
    ("sign_in", fuzz_sign_in),
    ("certificate", ledge::listener::tls::fuzz_certificate),
    ("join_file", ledge::membership::fuzz_join_file),
    ("question", ledge::membership::fuzz_question),
    ("box_backup", ledge::cli::backup::archive::fuzz_archive),
    ("photograph", ledge::pipeline::image::fuzz_image),
    ("scaled_jpeg", ledge::pipeline::image::fuzz_scaled_jpeg),
    ("table_rows", ledge::pipeline::table::cell::fuzz_rows),
    ("csv_rows", ledge::protocol::csv_rows::fuzz_csv_rows),
    ("pdf", ledge::documents::fuzz_pdf),
    ("invoice_xml", ledge::documents::fuzz_invoice_xml),
    ("tiff", ledge::documents::fuzz_tiff),
    ("bitmap", ledge::documents::fuzz_bitmap),
    ("searchable_pdf", ledge::documents::fuzz_searchable_pdf),
    ("step_result", ledge::pipeline::document_reading::step::fuzz_step_result),
    ("child_message", ledge::isolation::fuzz_child_message),
    ("document_steps", ledge::pipeline::document_reading::steps::fuzz_steps),
    ("page_messages", ledge::documents::fuzz_page_messages),
    ("text_layer", ledge::documents::fuzz_text_layer),
    ("feature_values", features::fuzz_feature_values),
    // MQTT.
    ("mqtt_packets", mqtt_packets),
    ("topics", ledge::mqtt::fuzz::fuzz_topics),
    ("message", ledge::mqtt::fuzz::fuzz_message),
    ("conditions", ledge::mqtt::fuzz::fuzz_conditions),
    ("bare_value", ledge::mqtt::fuzz::fuzz_bare_value),
    // Cameras.
    ("camera_login", ledge::cameras::login::fuzz_login),
    ("picture_size", ledge::pipeline::picture_size::fuzz_picture_size),
    // Files that somebody imports, and the preflight process.
    ("csv", ledge::cli::features::fuzz_csv),
    ("json_lines", ledge::cli::features::fuzz_json_lines),
    ("trial_report", ledge::updates::preflight::fuzz_preflight_report),
    // Models and declarations.
    ("model_toml", model_config::fuzz),
    ("onnx", onnx::fuzz_onnx),
    ("ir", ir::fuzz_ir),
    ("tflite", tflite::fuzz_tflite),
    ("feature_views", features::fuzz_feature_views),
    // The platform.
    ("metadata", trust::fuzz_metadata),
    ("manifest", ledge::rollout::fuzz::fuzz_manifest),
    ("release_description", ledge::updates::package::fuzz_release_description),
    ("catalogue", ledge::updates::catalogue::fuzz_catalogue),
    ("upload", ledge::updates::catalogue::fuzz_upload),
    ("proxy_answer", ledge::egress::fuzz_proxy_answer),
    ("audit_bundle", ledge::audit::fuzz::fuzz_audit_bundle),
    ("audit_record", ledge::audit::fuzz::fuzz_audit_record),
    ("audit_path", ledge::audit::fuzz::fuzz_audit_path),
    ("audit_checkpoint", ledge::audit::fuzz::fuzz_audit_checkpoint),
    ("audit_proof", ledge::audit::fuzz::fuzz_audit_proof),
    ("audit_certificate", ledge::audit::fuzz::fuzz_audit_certificate),
    // The disk of this box.
    ("trusted_files", trust::fuzz_trusted_files),
    ("key_store", fuzz_keys),
    ("kept_manifest", ledge::rollout::fuzz::fuzz_kept_manifest),
    ("update_states", ledge::updates::persisted::fuzz_update_states),
    ("load_records", ledge::repository::load_records::file::fuzz_load_records),
    ("profile", ledge::repository::profile::fuzz_profile),
    ("egress_counts", ledge::egress::fuzz_egress_counts),
    ("sealed", sealing::fuzz_sealed),
    ("sealed_file", sealing::fuzz_sealed_file),
    ("master_keys", sealing::fuzz_master_keys),
    ("journal", |data| journal::fuzz::fuzz(data) > 0),
    ("snapshot", |data| snapshot::fuzz::fuzz(data) > 0),
    ("acknowledged", features::fuzz_acknowledged),
    ("erased_entities", features::fuzz_erased_entities),
    ("entity_profiles", features::fuzz_entity_profiles),
    ("feature_catalog", features::fuzz_feature_catalog),
    ("feature_keys", features::fuzz_feature_keys),
    ("feature_records", features::fuzz_feature_records),
    ("window", fuzz_window),
    ("history_record", ledge::history::fuzz::fuzz_history_record),
    ("history_query", ledge::history::fuzz::fuzz_history_query),
    ("anomaly_state", ledge::anomaly::fuzz_anomaly_state),
    ("drift_watch", fuzz_watch),
];

/// The target of this name.
///
/// # Panics
/// When no target has this name.
pub fn run(name: &str) -> Run {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.unwrap_or_else(|| panic!("there is no fuzz target {name}")).1
}
