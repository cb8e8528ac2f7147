//! `ledge audit`: shows, verifies and proves records of the audit log.

mod certificate;
mod egress;
mod filter;
mod forget;
mod key;
mod logs;
mod prove;
mod records;
mod show;
pub(in crate::cli) mod subject;
mod tail;
mod verify;

use std::io::Write as _;

use clap::{Args, Subcommand};
use ledge_audit::record::AuditRecord;

use super::{Exit, GlobalArgs, Output};

/// The arguments of `ledge audit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AuditArgs {
    #[command(subcommand)]
    pub command: AuditCommand,
}

/// The verbs below `ledge audit`.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Verify a log: every signature, every record, every hash. No daemon is needed.
    ///
    /// Exit codes: 0 the log is complete and unchanged; 3 something is missing; 4 there are two histories of the same
    /// log; 5 the log differs from what was signed; 1 the log could not be read.
    Verify(verify::VerifyArgs),
    /// Write a proof that one record is in the log. Anyone can check it with only the verifier key.
    Prove(prove::ProveArgs),
    /// Check a proof of `ledge audit prove`, and print the record. Needs neither the log nor a network.
    Check(prove::ProofCheckArgs),
    /// Check a certificate of `ledge features erase`, and print what was erased. Needs neither the box nor a network.
    ///
    /// Exit codes: 0 the certificate is valid; 5 it is not, or it is that of another entity; 1 it could not be read.
    VerifyCertificate(certificate::VerifyCertificateArgs),
    /// Print records, the oldest first.
    Show(show::AuditShowArgs),
    /// Print the last records, and with --follow new ones as they are written.
    Tail(tail::TailArgs),
    /// Print the verifier key, which others need to verify this box's log.
    ///
    /// Copy the key from the box itself, and keep it apart from the log: whoever gives you both could have forged both.
    Key,
    /// Destroy the tag key of a period, so that nobody can find out any more which callers and data its tags stand for.
    ///
    /// The records stay, and the log can still be verified. This is how to erase the traces of callers from the log.
    Forget(forget::ForgetArgs),
    /// List every kind of message that this box can send: its fields, its destinations, and the bytes sent so far.
    Egress(egress::EgressArgs),
    /// Print the form of a record, as JSON Schema.
    Schema,
}

const EXAMPLES: &str = "\
Examples:
  ledge audit key                                       print the key for verification elsewhere
  ledge audit verify                                    verify all logs of this box
  ledge audit verify https://audit.lan/box-1 --key box-1.vkey --from last-checkpoint
  ledge audit show --since 2h --model minilm
  ledge audit show --input photograph.jpg               show the calls with this photograph
  ledge audit tail --follow
  ledge audit prove 4711 --out 4711.tlog-proof
  ledge audit check 4711.tlog-proof --key box-1.vkey
  ledge audit verify-certificate anna.erasure --key box-1.vkey
  ledge audit egress                                    show what this box can send, and what it has sent

The log cannot show events that were never written to it. It counts those that were lost before they were written.";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &AuditArgs, out: &mut Output) -> anyhow::Result<Exit> {
    match &args.command {
        AuditCommand::Verify(args) => verify::run(globals, args, out),
        AuditCommand::Prove(args) => prove::run(globals, args, out),
        AuditCommand::Check(args) => prove::check(globals, args, out),
        AuditCommand::VerifyCertificate(args) => certificate::run(globals, args, out),
        AuditCommand::Show(args) => show::run(globals, args, out),
        AuditCommand::Tail(args) => tail::run(globals, args, out),
        AuditCommand::Key => key::run(globals, out),
        AuditCommand::Forget(args) => forget::run(globals, args, out),
        AuditCommand::Egress(args) => egress::run(globals, args, out),
        AuditCommand::Schema => {
            serde_json::to_writer_pretty(&mut *out, &AuditRecord::schema())?;
            writeln!(out)?;
            Ok(Exit::Success)
        }
    }
}
