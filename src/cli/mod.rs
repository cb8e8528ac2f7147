//! The command line: one file a verb. The doc comments of arguments are their help texts.

#![expect(clippy::doc_markdown, reason = "a help text has no backticks and no angle brackets")]

pub mod accounts;
pub mod assets;
pub mod audit;
pub mod backup;
pub mod capacity;
pub mod checks;
pub mod config;
mod dispatch;
pub mod doctor;
pub mod encryption;
mod exit;
pub mod features;
pub mod health;
pub mod infer;
mod internal;
pub mod jobs;
pub mod join;
mod globals;
pub mod keys;
pub mod login;
pub mod models;
pub mod mqtt;
mod output;
mod owner;
mod progress;
pub mod report;
pub mod restore;
pub mod serve;
mod server;
pub mod sizing;
mod standalone;
mod stop_signals;
pub mod tls;
pub mod top;
pub mod tune;
pub mod unusual;
pub mod update;
pub mod upgrade;
mod verbs;

use clap::Parser;
use ledge_base::sys;
pub use ledge_base::toml_check::BadConfiguration;
use ledge_service::off_thread::block_on;

pub use exit::Exit;
pub use globals::{GlobalArgs, load_registry};
pub use internal::InternalCli;
pub use output::Output;
pub use verbs::{Cli, Command};

/// Prepares this process, which must have only one thread yet.
pub fn prepare_process() {
    sys::switch_runtime_telemetry_off();
    sys::share_memory_arenas();
    sys::keep_files_private();
    sys::close_other_files_on_exec();
    // Before Linux 6.4 this is only in a file, which a process that has closed its memory to others cannot open. rustix
    // keeps the value of the first read, and panics if that comes too late.
    let _ = rustix::param::page_size();
}

/// Runs the command line of this process.
pub fn run(out: &mut Output) -> anyhow::Result<Exit> {
    ledge_isolation::spawner::end_with_spawner()?;
    match InternalCli::of_process() {
        Some(internal) => internal.run(out),
        None => Cli::parse().run(out),
    }
}

#[cfg(test)]
mod tests;
