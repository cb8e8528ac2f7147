//! `ledge audit prove` and `check`: writes and checks the proof that a record is in the log.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use ledge_audit::key::SignedCheckpoint;
use ledge_audit::proof::{InclusionProof, ProofError};
use ledge_base::durable;
use serde_json::json;

use super::super::{Exit, GlobalArgs, Output, block_on};
use super::logs::{AuditLogArgs, own_key, verifier_key};

/// The arguments of `ledge audit prove`.
#[derive(Debug, Args)]
pub struct ProveArgs {
    /// The sequence number of the record.
    #[arg(value_name = "SEQ")]
    pub seq: u64,
    #[command(flatten)]
    pub log: AuditLogArgs,
    /// The number of the log, among those of the box [default: the last].
    #[arg(long, value_name = "N")]
    pub generation: Option<u32>,
    /// The file to write the proof to [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// The arguments of `ledge audit check`.
#[derive(Debug, Args)]
pub struct ProofCheckArgs {
    /// The file with the proof.
    #[arg(value_name = "PROOF")]
    pub proof: PathBuf,
    /// The verifier key of the box, or a file with it [default: that of this box].
    #[arg(long, value_name = "KEY|FILE")]
    pub key: Option<String>,
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs `prove`.
pub fn run(globals: &GlobalArgs, args: &ProveArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let proof = block_on(async {
        let found = args.log.find(globals).await?;
        let place = found.select(args.generation)?;
        let note = place.files.checkpoint().await?;
        let note = note.with_context(|| format!("{} has no checkpoint, so no record in it is signed", place.files))?;
        let opened = place.keys.iter().map(|key| SignedCheckpoint::open(&note, key)).reduce(Result::or);
        let checkpoint = opened.context("there is no verifier key for this log")??;
        Ok::<_, anyhow::Error>(InclusionProof::make(&place.files, &checkpoint, args.seq).await?)
    })??;
    match &args.out {
        Some(path) => {
            durable::replace(path, &proof.to_bytes())
                .with_context(|| format!("{} cannot be written", path.display()))?;
        }
        None => out.write_all(&proof.to_bytes())?,
    }
    Ok(Exit::Success)
}

/// Runs `check`.
pub fn check(globals: &GlobalArgs, args: &ProofCheckArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let key = match &args.key {
        Some(key) => verifier_key(key)?,
        None => own_key(&globals.load_config()?)?.context("--key is required, because this box has no audit key")?,
    };
    let bytes = std::fs::read(&args.proof).with_context(|| format!("{} cannot be read", args.proof.display()))?;
    let proof = InclusionProof::parse(&bytes).with_context(|| args.proof.display().to_string())?;

    let (checkpoint, record) = match proof.check(&key) {
        Ok(checked) => checked,
        Err(error @ (ProofError::Malformed { .. } | ProofError::Files(_) | ProofError::NotThere { .. })) => {
            bail!(error)
        }
        Err(
            error @ (ProofError::Checkpoint(_)
            | ProofError::Origin { .. }
            | ProofError::NotIncluded
            | ProofError::Record(_)),
        ) => {
            let _ = writeln!(std::io::stderr(), "ledge: the proof {} is not valid: {error}", args.proof.display());
            return Ok(Exit::Tampered);
        }
    };

    if args.json {
        let document = json!({
            "record": record, "origin": checkpoint.origin, "size": checkpoint.size,
            "root": checkpoint.root.to_string(), "verifier_key": key,
        });
        writeln!(out, "{document}")?;
    } else {
        out.write_all(&proof.record)?;
        writeln!(
            out,
            "\n\nThis is record {} of {}. {key} signed its checkpoint of {} records.",
            record.seq, checkpoint.origin, checkpoint.size
        )?;
    }
    Ok(Exit::Success)
}
