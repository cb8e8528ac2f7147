//! The arguments of `ledge update`.

use clap::{Args, Subcommand};

use super::super::server::ServerArgs;
use super::tuf;

const EXAMPLES: &str = "\
Examples:
  ledge update status
  ledge update check                           check the platform now
  ledge update check --from file:///media/usb  take updates from a USB stick
  ledge update pin minilm                      keep its version until unpinned
  ledge update rollback models/minilm
  ledge update trust                           show which metadata is trusted, and until when
  ledge update reset-trust                     after damage, once its cause is known";

/// The arguments of `ledge update`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UpdateArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Write JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: UpdateCommand,
}

/// The verbs below `ledge update`.
#[derive(Debug, Subcommand)]
pub enum UpdateCommand {
    /// Show the live versions, the trials, the rollouts that wait and why, and the results of the last rollouts.
    Status,
    /// Make the server check the platform for updates now, and wait for the result.
    Check {
        /// Another repository to use for this check, such as a copy of the platform's on a USB stick:
        /// file:///media/usb.
        ///
        /// Only content that the platform signed is accepted, from any place.
        #[arg(long, value_name = "URL")]
        from: Option<String>,
    },
    /// Show the roles of the trusted metadata, with their versions and expiry times.
    Trust,
    /// Keep a subject at its version on this box, whatever the platform rolls out.
    Pin {
        /// The subject to pin, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Remove a pin, so that the platform decides again.
    Unpin {
        /// The pinned subject, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Go back to the previous version: the one before the trial, or else the one before the last update. Needs no
    /// network.
    Rollback {
        /// The subject to roll back, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Cancel an update in progress. The live version stays.
    Cancel {
        /// The subject of the update, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Forget the signed metadata that this box trusts, and begin again with the root file.
    ///
    /// For a box that reports damaged trusted metadata, or whose platform was set up again. First find the cause: a
    /// failing disk, or an intruder. The price: until the next successful check, this box accepts metadata that is
    /// older than what it had, such as a repository of last month with a version that was revoked since; and it forgets
    /// the earliest time that the metadata proved. The live versions stay, and the old metadata is set aside in the
    /// update store. If no daemon runs, this command changes the store itself.
    ResetTrust,
    /// Run a plain TUF client, for the public conformance suite of TUF.
    ///
    /// It neither reads the configuration nor touches the metadata that this box trusts, uses the system clock as it
    /// is, and connects only to servers on this machine.
    Tuf(Box<tuf::TufArgs>),
    /// Try a release in this process. Only the daemon starts it, and sends it an order.
    #[command(hide = true)]
    Trial,
}
