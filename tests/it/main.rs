//! Whole-daemon tests: the real binary, real runtimes, real models, a real socket.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics says where")]

#[cfg(not(feature = "fuzzing"))]
compile_error!("these tests need the functions of fuzzers and other features: add --all-features, as `make test` does");

mod access;
mod access_matrix;
mod access_table;
mod accuracy;
mod appliance;
mod alerts;
mod audit;
mod audit_cli;
mod audit_faults;
mod audit_log;
mod audit_quota;
mod audit_surfaces;
mod batch_infer;
mod blame;
mod cache;
#[expect(dead_code, reason = "shared with tests/peers, which uses the rest")]
mod camera_server;
mod camera_pictures;
mod camera_states;
mod cameras;
mod capacity;
mod candidates;
#[path = "../peers/certificates.rs"]
mod certificates;
mod cli;
mod client;
mod clients;
mod compiled_cache;
mod console;
mod core;
mod credentials;
mod daemon;
mod detection;
mod devices_page;
mod document_bitmap;
mod document_intelligence;
mod document_pdf;
mod document_reading;
mod documents;
mod dry_runs;
mod encryption;
mod endless_runs;
mod failing_models;
mod fault_rounds;
mod feature_access;
mod feature_admin;
mod feature_encryption;
mod feature_faults;
mod feature_inference;
mod features;
mod features_cli;
mod fuzz;
#[path = "../peers/hostile.rs"]
#[expect(dead_code, reason = "shared with tests/peers, which uses the rest")]
mod hostile;
mod hook_server;
mod hostile_clients;
mod hostile_numbers;
mod golden;
mod grpc;
mod grpc_client;
mod http;
mod inbox;
mod isolation;
mod isolation_faults;
mod keys_http;
mod lifecycle;
mod metrics;
mod limits;
mod looping_model;
mod managed;
mod membership;
mod memory;
mod messages;
mod monitoring;
mod mqtt_broker;
mod mqtt_sessions;
mod oip;
mod other_users;
mod pipelines;
mod private_files;
mod quantized;
mod read_only_disk;
mod right_answers;
mod right_numbers;
mod runtimes;
mod sealed_models;
mod searchable_pdf;
mod service_figures;
mod spawner;
mod stored_forms;
mod systemd;
mod table_golden;
mod table_models;
mod table_rows;
mod tables;
mod texts;
mod tidy;
mod tls;
mod tls_cli;
mod tls_kit;
mod top;
mod update_faults;
mod update_trials;
mod trial;
mod updates_api;
mod uploads;
mod vision;
mod whole_box;

/// The program that the tests start, and the folder of the sources.
const PROGRAM: &str = env!("CARGO_BIN_EXE_ledge");
const CHECKOUT: &str = env!("CARGO_MANIFEST_DIR");
