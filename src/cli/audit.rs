//! `ledge audit`: the audit log, shown, verified and proven.

mod egress;
mod filter;
mod forget;
mod key;
mod place;
mod prove;
mod records;
mod show;
mod tail;
mod verify;

use std::io::Write as _;

use clap::{Args, Subcommand};
use ledge_audit::record::AuditRecord;

use super::{Exit, Globals, Output};

/// The arguments of `ledge audit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AuditArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: AuditCommand,
}

/// What to do with the audit log.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Check that a log is whole: every signature, every record, every hash. No daemon is needed.
    ///
    /// Exit codes: 0 it is whole; 3 something is missing; 4 there is another history of the same log; 5 what is there is not
    /// what was signed; 1 it could not be looked at.
    Verify(verify::VerifyArgs),
    /// Write the proof that one record is in the log, which anybody can check with the verifier key alone.
    Prove(prove::ProveArgs),
    /// Check such a proof, and print the record. Needs neither the log nor a network.
    Check(prove::CheckArgs),
    /// Print records, the oldest first.
    Show(show::ShowArgs),
    /// Print the last records, and with --follow those that come.
    Tail(tail::TailArgs),
    /// Print the verifier key, which others need to check this box's log.
    ///
    /// Take it from the box itself, and keep it where the log is not: whoever gives you both could have made up both.
    Key,
    /// Destroy the key of a period, so that nobody can tell any more what its tags stand for.
    ///
    /// The records stay, and the log can still be verified. `ledge audit forget` is the erasure of what callers sent.
    Forget(forget::ForgetArgs),
    /// List every kind of message that this box can send, its fields, where it may go, and how much went since install.
    Egress(egress::EgressArgs),
    /// Print the closed form of a record, as JSON Schema.
    Schema,
}

const EXAMPLES: &str = "\
Examples:
  ledge audit key                                       what others verify with
  ledge audit verify                                    all of this box's logs
  ledge audit verify https://audit.lan/box-1 --key box-1.vkey --from last-checkpoint
  ledge audit show --since 2h --model minilm
  ledge audit show --input photograph.jpg               which calls had it
  ledge audit tail --follow
  ledge audit prove 4711 --out 4711.tlog-proof
  ledge audit check 4711.tlog-proof --key box-1.vkey
  ledge audit egress                                    what can leave this box, and what did

The log says nothing about what was never written to it; what was lost on the way is counted in it.";

/// Runs the verb.
pub fn run(globals: &Globals, args: &AuditArgs, out: &mut Output) -> anyhow::Result<Exit> {
    match &args.command {
        AuditCommand::Verify(args) => verify::run(globals, args, out),
        AuditCommand::Prove(args) => prove::run(globals, args, out),
        AuditCommand::Check(args) => prove::check(globals, args, out),
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
