//! `ledge update tuf`: the command line that the conformance suite of TUF drives (its CLIENT-CLI.md).

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use ledge_base::clock;
use ledge_egress::{Egress, EgressConfig, TlsSettings};
use ledge_service::audit_event::AuditSink;
use ledge_updates::config::RepositoryAddress;
use ledge_updates::source::{self, Source};
use ledge_updates::trust::plain::{self, PlainClient};

use super::super::{Exit, block_on};

/// The arguments of `ledge update tuf`.
#[derive(Debug, Args)]
pub struct TufArgs {
    /// The folder of the trusted metadata, a file a role.
    #[arg(long, value_name = "DIR")]
    metadata_dir: PathBuf,
    /// Where the repository's metadata is.
    #[arg(long, value_name = "URL")]
    metadata_url: Option<RepositoryAddress>,
    /// A target to fetch. Can be repeated.
    #[arg(long, value_name = "PATH")]
    target_name: Vec<String>,
    /// Where the repository's targets are.
    #[arg(long, value_name = "URL")]
    target_base_url: Option<RepositoryAddress>,
    /// The folder for the targets.
    #[arg(long, value_name = "DIR")]
    target_dir: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    command: TufCommand,
}

/// What a TUF client does.
#[derive(Debug, Subcommand)]
enum TufCommand {
    /// Trust a root from now on.
    Init {
        /// The root metadata.
        #[arg(value_name = "ROOT")]
        root: PathBuf,
    },
    /// Fetch what is new of the metadata.
    Refresh,
    /// The same, and then the targets.
    Download,
}

/// Runs the verb.
pub fn run(args: &TufArgs) -> anyhow::Result<Exit> {
    if let TufCommand::Init { root } = &args.command {
        plain::init(&args.metadata_dir, root)?;
        return Ok(Exit::Success);
    }
    let metadata = args.metadata_url.as_ref().context("--metadata-url is needed")?;
    let targets = args.target_base_url.as_ref().unwrap_or(metadata);
    let download = matches!(args.command, TufCommand::Download);
    block_on(async {
        // Without an allow-list only this machine can be connected to.
        let egress = Egress::new(&EgressConfig::default(), AuditSink::to_nowhere());
        let with_client = |address| (address, source::client(address, &egress, None, TlsSettings::default));
        let source = Source::apart(with_client(metadata), with_client(targets));
        let mut client = PlainClient::open(&args.metadata_dir, clock::unix_millis())?;
        client.refresh(&source).await?;
        if download {
            let folder = args.target_dir.as_ref().context("--target-dir is needed")?;
            anyhow::ensure!(!args.target_name.is_empty(), "--target-name is needed");
            for name in &args.target_name {
                client.download(&source, name, folder).await?;
            }
        }
        Ok(Exit::Success)
    })?
}
