//! `ledge audit verify-certificate`: checks the certificate of an erasure.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use ledge_audit::certificate::{CertificateError, ErasureCertificate};
use ledge_audit::proof::ProofError;
use serde_json::{Value, json};

use super::super::{Exit, GlobalArgs, Output};
use super::filter::{join_key, readings};
use super::logs::{own_key, verifier_key};

/// The arguments of `ledge audit verify-certificate`.
#[derive(Debug, Args)]
pub struct VerifyCertificateArgs {
    /// The file with the certificate.
    #[arg(value_name = "CERTIFICATE")]
    pub certificate: PathBuf,
    /// The verifier key of the box, or a file with it [default: that of this box].
    ///
    /// Not the key in the certificate itself: whoever forged a certificate would have written their own key into it.
    #[arg(long, value_name = "KEY|FILE")]
    pub key: Option<String>,
    /// The entity that must have been erased, as JOIN_KEY=VALUE. Repeat the option for each join key.
    ///
    /// Needed for a certificate that does not name the entity.
    #[arg(long, value_name = "JOIN_KEY=VALUE", value_parser = join_key)]
    pub entity: Vec<(String, String)>,
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &VerifyCertificateArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let key = match &args.key {
        Some(key) => verifier_key(key)?,
        None => own_key(&globals.load_config()?)?.context("--key is required, because this box has no audit key")?,
    };
    let path = args.certificate.display();
    let bytes = std::fs::read(&args.certificate).with_context(|| format!("{path} cannot be read"))?;
    let checked = match ErasureCertificate::parse(&bytes).and_then(|certificate| certificate.check(&key)) {
        Ok(checked) => checked,
        Err(CertificateError::Proof(error @ ProofError::Files(_))) => bail!(error),
        Err(error) => return Ok(refused(&format!("the certificate {path} is not valid: {error}"))),
    };

    let entities: Vec<BTreeMap<&str, Value>> =
        if args.entity.is_empty() { Vec::new() } else { readings(&args.entity)? };
    let is_about = |entity: &BTreeMap<&str, Value>| {
        let entity = entity.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        checked.statement.is_about(&entity)
    };
    if !entities.is_empty() && !entities.iter().any(is_about) {
        return Ok(refused(&format!("the certificate {path} is valid, but it is that of another entity")));
    }

    let (record, checkpoint, statement) = (&checked.record, &checked.checkpoint, &checked.statement);
    if args.json {
        let document = json!({
            "erased_at": record.ts, "record": record, "statement": statement, "entity_checked": !entities.is_empty(),
            "origin": checkpoint.origin, "size": checkpoint.size, "root": checkpoint.root.to_string(),
            "verifier_key": key,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        return Ok(Exit::Success);
    }

    writeln!(
        out,
        "erased: {} records of {} feature views, {}",
        statement.records,
        statement.feature_views.len(),
        record.ts
    )?;
    for view in &statement.feature_views {
        writeln!(out, "  {}: {} records, of {} to {}", view.name, view.records, view.earliest, view.latest)?;
    }
    match (statement.entity(), entities.is_empty()) {
        (Some(entity), _) => writeln!(out, "entity: {}", serde_json::to_string(entity)?)?,
        (None, false) => writeln!(out, "entity: the one that was given")?,
        (None, true) => {
            writeln!(out, "entity: not named in the certificate; check it with --entity JOIN_KEY=VALUE")?;
        }
    }
    let (seq, origin, size) = (record.seq, &checkpoint.origin, checkpoint.size);
    writeln!(out, "This is record {seq} of {origin}. {key} signed its checkpoint of {size} records.")?;
    Ok(Exit::Success)
}

fn refused(reason: &str) -> Exit {
    let _ = writeln!(std::io::stderr(), "ledge: {reason}");
    Exit::Tampered
}
