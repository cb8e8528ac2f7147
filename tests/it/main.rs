//! Whole-daemon tests: the real binary, real runtimes, real models, a real socket.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics says where")]

mod access;
mod access_matrix;
mod access_table;
mod appliance;
mod audit;
mod audit_cli;
mod audit_faults;
mod audit_log;
mod audit_quota;
mod audit_surfaces;
mod batch_infer;
mod bench;
mod cache;
#[expect(dead_code, reason = "shared with tests/peers, which uses the rest")]
mod camera_server;
mod cameras;
mod candidates;
#[path = "../peers/certificates.rs"]
mod certificates;
mod cli;
mod client;
mod clients;
mod compiled_cache;
mod core;
mod crashing_models;
mod credentials;
mod daemon;
mod detection;
mod devices_page;
mod document_pdf;
mod document_reading;
mod documents;
mod dry_runs;
mod encryption;
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
mod hostile_clients;
mod hostile_numbers;
mod golden;
mod http;
mod lifecycle;
mod metrics;
mod limits;
mod managed;
mod oip;
mod other_users;
mod pipelines;
mod private_files;
mod quantized;
mod right_answers;
mod runtimes;
mod stored_forms;
mod systemd;
mod table_golden;
mod table_models;
mod tables;
mod texts;
mod tidy;
mod tls;
mod tls_cli;
mod tls_kit;
mod top;
mod update_faults;
mod trial;
mod updates_api;
mod vision;
