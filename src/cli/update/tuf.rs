//! `ledge update tuf`: the command line for the conformance suite of TUF, as in its CLIENT-CLI.md.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use ledge_base::clock;
use ledge_egress::{Egress, EgressConfig, TlsClientSettings};
use ledge_service::audit_event::AuditSink;
use ledge_updates::config::RepositoryAddress;
use ledge_updates::source::{self, RepositorySource};
use ledge_updates::trust::plain::{self, PlainClient};

use super::super::{Exit, block_on};

/// The arguments of `ledge update tuf`.
#[derive(Debug, Args)]
pub struct TufArgs {
    /// The folder of the trusted metadata, with one file per role.
    #[arg(long, value_name = "DIR")]
    metadata_dir: PathBuf,
    /// The URL of the repository's metadata.
    #[arg(long, value_name = "URL")]
    metadata_url: Option<RepositoryAddress>,
    /// A target to fetch. Can be repeated.
    #[arg(long, value_name = "PATH")]
    target_name: Vec<String>,
    /// The URL of the repository's targets [default: that of the metadata].
    #[arg(long, value_name = "URL")]
    target_base_url: Option<RepositoryAddress>,
    /// The folder to write the targets to.
    #[arg(long, value_name = "DIR")]
    target_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: TufCommand,
}

/// The operations of a TUF client.
#[derive(Debug, Subcommand)]
enum TufCommand {
    /// Start to trust a root.
    Init {
        /// The file with the root metadata.
        #[arg(value_name = "ROOT")]
        root: PathBuf,
    },
    /// Fetch new metadata, and verify it.
    Refresh,
    /// Fetch new metadata, then the targets.
    Download,
}

/// Runs the verb.
pub fn run(args: &TufArgs) -> anyhow::Result<Exit> {
    if let TufCommand::Init { root } = &args.command {
        plain::init(&args.metadata_dir, root)?;
        return Ok(Exit::Success);
    }
    let metadata = args.metadata_url.as_ref().context("--metadata-url is required")?;
    let targets = args.target_base_url.as_ref().unwrap_or(metadata);
    let download = matches!(args.command, TufCommand::Download);
    block_on(async {
        // An empty allow-list permits connections to this machine only.
        let egress = Egress::new(&EgressConfig::default(), AuditSink::to_nowhere());
        let with_client = |address| (address, source::client(address, &egress, None, TlsClientSettings::default));
        let source = RepositorySource::apart(with_client(metadata), with_client(targets));
        let mut client = PlainClient::open(&args.metadata_dir, clock::unix_millis())?;
        client.refresh(&source).await?;
        if download {
            let folder = args.target_dir.as_ref().context("--target-dir is required")?;
            anyhow::ensure!(!args.target_name.is_empty(), "--target-name is required");
            for name in &args.target_name {
                client.download(&source, name, folder).await?;
            }
        }
        Ok(Exit::Success)
    })?
}
