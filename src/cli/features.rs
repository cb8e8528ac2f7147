//! `ledge features`: the feature store of a running daemon.

pub(in crate::cli) mod backup;
pub(in crate::cli) mod daemon;
mod export;
mod import;
pub(in crate::cli) mod new_file;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "features/parquet_unavailable.rs"]
mod parquet;
mod push;
mod rows;
pub(in crate::cli) mod show;
mod subject;
mod table;
mod unusual;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ledge_service::audit_event::erasure::EntityNaming;

use super::server::ServerArgs;
use super::{Exit, GlobalArgs, Output, block_on};
use daemon::DaemonClient;
use subject::WantedCertificate;
use table::RowsFormat;

#[cfg(any(test, feature = "fuzzing"))]
pub use table::{fuzz_csv, fuzz_json_lines};

/// The arguments of `ledge features`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FeaturesArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Write JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: FeaturesCommand,
}

/// The verbs below `ledge features`.
#[derive(Debug, Subcommand)]
pub enum FeaturesCommand {
    /// List the feature views and feature services.
    List,
    /// Show the declaration of a feature view or feature service.
    Show {
        /// The name of the feature view or feature service.
        name: String,
    },
    /// Read features of one entity: their values, statuses and ages.
    Get {
        /// Features as VIEW:FEATURE, or whole feature views.
        #[arg(value_name = "VIEW[:FEATURE]", required_unless_present = "service")]
        features: Vec<String>,
        /// A join key of the entity. Can be repeated.
        #[arg(long, required = true, value_name = "KEY=VALUE")]
        entity: Vec<String>,
        /// The feature service to read the features of.
        #[arg(long, conflicts_with = "features")]
        service: Option<String>,
    },
    /// Write a row, or the rows of a file, into a feature view.
    Push {
        /// The feature view.
        view: String,
        /// The row: join keys, features and the event time [default: now]. A list is JSON; an empty value is null.
        #[arg(value_name = "COLUMN=VALUE", required_unless_present = "file")]
        columns: Vec<String>,
        /// A file of rows instead, as for `ledge features import`.
        #[arg(long, conflicts_with = "columns")]
        file: Option<PathBuf>,
    },
    /// Back up the whole store, while the server works.
    ///
    /// The backup contains every push that was acknowledged before it. The file is verified to its end before it gets
    /// its name.
    Backup {
        /// The file to write.
        file: PathBuf,
        /// Overwrite the file if there is one.
        #[arg(long)]
        force: bool,
        /// The age recipient to encrypt the backup to; its identity restores the backup.
        #[arg(long, value_name = "age1…")]
        to: Option<String>,
        /// The file with the passphrase to encrypt the backup with.
        #[arg(long, value_name = "FILE", conflicts_with = "to")]
        passphrase_file: Option<PathBuf>,
        /// Do not encrypt the backup, although the store is encrypted.
        #[arg(long, conflicts_with_all = ["to", "passphrase_file"])]
        plain: bool,
    },
    /// Replace the whole content of the store by a backup.
    ///
    /// A backup that is damaged, or contains something that is not declared here, is refused without any change.
    Restore {
        /// The file with the backup.
        file: PathBuf,
        /// The file with the age identity that decrypts the backup.
        #[arg(long, value_name = "FILE")]
        identity: Option<PathBuf>,
        /// The file with the passphrase that decrypts the backup.
        #[arg(long, value_name = "FILE", conflicts_with = "identity")]
        passphrase_file: Option<PathBuf>,
    },
    /// Erase an entity: its rows in every feature view, and those of every entity whose join keys include its own.
    ///
    /// Afterwards none of its data can be read from this box, and restoring an older backup here does not bring it
    /// back. Backups elsewhere are not changed.
    Erase {
        /// The join keys of the entity, with their values.
        #[arg(value_name = "KEY=VALUE", required = true)]
        entity: Vec<String>,
        /// Write a certificate of the erasure for the person concerned into this file, which must not exist.
        ///
        /// It has what was erased, the record of the audit log with its proof, and the verifier key. Anyone can check
        /// it without this box: `ledge audit verify-certificate`.
        #[arg(long, value_name = "FILE")]
        certificate: Option<PathBuf>,
        /// Name the entity in the certificate. Otherwise the certificate has a hash, which only a person who knows the
        /// entity can check.
        #[arg(long, requires = "certificate")]
        name_entity: bool,
    },
    /// Complete the certificate of an erasure, when the server or the connection failed after the erasure.
    Certificate {
        /// The file with the statement, which `ledge features erase` left.
        statement: PathBuf,
        /// The certificate to write.
        file: PathBuf,
    },
    /// Show everything that this box has on one entity: its rows in every feature view, also those in the journal, and
    /// the records of the audit log that have its tag.
    ///
    /// The disclosure itself is recorded in the audit log. Run it on the box as root or as the user ledge, who may read
    /// the audit log.
    Disclose {
        /// The join keys of the entity, with their values.
        #[arg(value_name = "KEY=VALUE", required = true)]
        entity: Vec<String>,
        /// Leave out the audit log, for another box than this one.
        #[arg(long)]
        no_audit: bool,
    },
    /// Write the rows of a feature view to a file: join keys, features (without aggregations), and the event time.
    Export {
        /// The feature view.
        view: String,
        /// The file to write: .parquet, .csv or .jsonl.
        file: PathBuf,
        /// The format [default: by the file's name].
        #[arg(long, value_enum)]
        format: Option<RowsFormat>,
        /// Overwrite the file if there is one.
        #[arg(long)]
        force: bool,
    },
    /// Push the rows of a file into a feature view. The import can be repeated: for each entity the newest event time
    /// wins.
    Import {
        /// The feature view.
        view: String,
        /// The file: .parquet, .csv or .jsonl.
        file: PathBuf,
        /// The format [default: by the file's name].
        #[arg(long, value_enum)]
        format: Option<RowsFormat>,
    },
    /// Show the entities whose rows are unusual, and the features that explain it.
    ///
    /// Of the feature views that have [feature_view.unusual] in their declaration. Exit code 1 while an entity is
    /// unusual.
    Unusual {
        /// The feature view [default: all].
        #[arg(long)]
        view: Option<String>,
        #[command(subcommand)]
        command: Option<UnusualRowsCommand>,
    },
    /// Forecast the next values of a feature of one entity, with the band that holds about nine of ten.
    Forecast {
        /// The feature, of a feature view that has [feature_view.unusual] in its declaration.
        #[arg(long, value_name = "VIEW:FEATURE")]
        feature: String,
        /// A join key of the entity. Can be repeated.
        #[arg(long, required = true, value_name = "KEY=VALUE")]
        entity: Vec<String>,
        /// The number of values [default: 12].
        #[arg(long)]
        count: Option<u32>,
    },
    /// Take a snapshot, so that a start after a crash reads less of the journal.
    Snapshot,
    /// Rebuild the index, so that it takes less space.
    Compact,
    /// Show the state of the store: rows, sizes, journal, snapshot, damage.
    Status,
}

/// The verbs below `ledge features unusual`.
#[derive(Debug, Subcommand)]
pub enum UnusualRowsCommand {
    /// Say that the last unusual row of an entity was normal: such rows are not reported again. It is recorded in the
    /// audit log.
    Normal {
        /// The feature view.
        view: String,
        /// The join keys of the entity, with their values.
        #[arg(value_name = "KEY=VALUE", required = true)]
        entity: Vec<String>,
    },
}

const EXAMPLES: &str = "\
Examples:
  ledge features list
  ledge features get sensors:temperature --entity machine_id=press-7
  ledge features push sensors machine_id=press-7 temperature=71.5
  ledge features backup /mnt/usb/features.ledge
  ledge features backup features.ledge.age --to age1…
  ledge features restore /mnt/usb/features.ledge
  ledge features disclose machine_id=press-7
  ledge features erase machine_id=press-7
  ledge features erase customer_id=1001 --certificate 1001.erasure
  ledge features unusual --view sensors
  ledge features unusual normal sensors machine_id=press-7
  ledge features forecast --feature sensors:temperature --entity machine_id=press-7
  ledge features export sensors sensors.parquet
  ledge features import sensors history.csv";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &FeaturesArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let mut daemon = DaemonClient::new(globals, &args.server)?;
    let json = args.json;
    block_on(async {
        match &args.command {
            FeaturesCommand::List => show::list(&mut daemon, json, out).await?,
            FeaturesCommand::Show { name } => show::show(&mut daemon, name, json, out).await?,
            FeaturesCommand::Get { features, entity, service } => {
                show::get(&mut daemon, features, entity, service.as_deref(), json, out).await?;
            }
            FeaturesCommand::Push { view, file: Some(file), .. } => {
                import::run(&mut daemon, view, file, None, json, out).await?;
            }
            FeaturesCommand::Push { view, columns, file: None } => {
                push::run(&mut daemon, view, columns, json, out).await?;
            }
            FeaturesCommand::Backup { file, force, to, passphrase_file, plain } => {
                let to = backup::recipient(to.as_deref(), passphrase_file.as_deref())?;
                backup::backup(&mut daemon, file, *force, to, *plain, json, out).await?;
            }
            FeaturesCommand::Restore { file, identity, passphrase_file } => {
                let with = backup::identity(identity.as_deref(), passphrase_file.as_deref())?;
                backup::restore(&mut daemon, file, with, json, out).await?;
            }
            FeaturesCommand::Erase { entity, certificate, name_entity } => {
                let naming = if *name_entity { EntityNaming::Named } else { EntityNaming::Hashed };
                let wanted = certificate.as_deref().map(|file| WantedCertificate { file, naming });
                subject::erase(&mut daemon, entity, wanted, json, out).await?;
            }
            FeaturesCommand::Certificate { statement, file } => {
                subject::certificate(&mut daemon, statement, file, out).await?;
            }
            FeaturesCommand::Disclose { entity, no_audit } => {
                subject::disclose(globals, &mut daemon, entity, !no_audit, json, out).await?;
            }
            FeaturesCommand::Export { view, file, format, force } => {
                export::run(&mut daemon, view, file, *format, *force, json, out).await?;
            }
            FeaturesCommand::Import { view, file, format } => {
                import::run(&mut daemon, view, file, *format, json, out).await?;
            }
            FeaturesCommand::Unusual { command: Some(UnusualRowsCommand::Normal { view, entity }), .. } => {
                unusual::call_normal(&mut daemon, view, entity, out).await?;
            }
            FeaturesCommand::Unusual { view, command: None } => {
                return unusual::unusual(&mut daemon, view.as_deref(), json, out).await;
            }
            FeaturesCommand::Forecast { feature, entity, count } => {
                unusual::forecast(&mut daemon, feature, entity, *count, json, out).await?;
            }
            FeaturesCommand::Snapshot => backup::snapshot(&mut daemon, json, out).await?,
            FeaturesCommand::Compact => backup::compact(&mut daemon, json, out).await?,
            FeaturesCommand::Status => show::status(&mut daemon, json, out).await?,
        }
        Ok(Exit::Success)
    })?
}
