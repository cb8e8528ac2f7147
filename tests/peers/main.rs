//! Ledge with real brokers and clients of other makers. `make test-peers` installs them and runs this; nothing here is
//! part of `cargo test`.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics says where")]

mod access_mqtt;
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/access_table.rs"]
mod access_table;
mod alerts;
mod attacks;
mod attacks_on_daemon;
mod audit_canaries;
mod audit_fleet;
mod audit_interrupted;
mod audit_kit;
mod audit_live;
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/audit_log.rs"]
mod audit_log;
mod audit_sync;
mod audit_verifiers;
mod azure;
mod bindings;
mod boxes;
mod broker;
mod browser;
mod calls;
#[path = "../it/camera_server.rs"]
mod camera_server;
mod cameras;
mod catalogue;
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
mod certificates;
mod check;
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/client.rs"]
mod client;
mod console;
mod console_cameras;
mod console_keys;
mod console_looks;
mod console_models;
mod console_try;
mod console_audit;
mod console_features;
mod console_updates;
mod containers;
mod cpus;
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/daemon.rs"]
mod daemon;
mod deepstack;
mod delivery;
mod devices;
#[path = "../it/devices_page.rs"]
mod devices_page;
mod documents_page;
#[path = "../it/fault_rounds.rs"]
mod fault_rounds;
mod erasures;
mod faults;
mod feast;
mod features;
mod group;
mod grpc;
mod hindered;
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/hook_server.rs"]
mod hook_server;
mod hostile;
mod inbox;
mod interrupted;
mod isolation_faults;
mod machine;
mod message;
mod mqtt;
mod nginx;
mod openai;
mod overlaps;
mod packages;
mod page;
mod page_types;
mod platform;
mod poison;
mod presence;
mod prometheus;
mod receipts;
mod releases;
mod report;
#[path = "../it/simulated_month.rs"]
mod simulated_month;
mod schemathesis;
mod sealed_updates;
mod security;
mod small_box;
mod soak;
mod systemd;
#[path = "../it/table_golden.rs"]
mod table_golden;
#[path = "../it/table_rows.rs"]
mod table_rows;
mod tables;
mod tables_page;
mod text_page;
mod tls_clients;
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/tls_kit.rs"]
mod tls_kit;
mod tools;
mod unit;
mod update_clocks;
mod update_setbacks;
mod update_settings;
mod updates;
mod virtual_machine;
mod vision_page;

/// The program that the tests start, and the folder of the sources.
const PROGRAM: &str = env!("CARGO_BIN_EXE_ledge");
const CHECKOUT: &str = env!("CARGO_MANIFEST_DIR");
