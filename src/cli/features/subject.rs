//! `ledge features disclose`, `erase` and `certificate`: the rights of the person or machine that an entity stands for.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ledge_audit::certificate::ErasureCertificate;
use ledge_base::durable;
use ledge_service::audit_event::erasure::{EntityNaming, ErasureStatement};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::daemon::DaemonClient;
use super::new_file::NewFile;
use super::show::{columns, document, join_keys};
use crate::cli::audit::subject::AuditTraces;
use crate::cli::{GlobalArgs, Output};

/// The certificate that an erasure writes.
pub struct WantedCertificate<'a> {
    pub file: &'a Path,
    pub naming: EntityNaming,
}

/// `ledge features erase`.
pub async fn erase(
    daemon: &mut DaemonClient,
    entity: &[String],
    certificate: Option<WantedCertificate<'_>>,
    json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    let entity: Map<String, Json> = join_keys(daemon, entity).await?.into_iter().collect();
    let mut body = json!({ "entity": entity });
    // Before anything is erased: the file must be writable.
    let pending = certificate.as_ref().map(|wanted| PendingCertificate::create(wanted.file)).transpose()?;
    if let (Some(wanted), Some(body)) = (&certificate, body.as_object_mut()) {
        body.insert("certificate".to_owned(), serde_json::to_value(wanted.naming)?);
    }
    let answer: ErasedAnswer = daemon.post("/features/erase", &body).await?;
    let record = match (pending, answer.statements.first()) {
        (Some(pending), Some(statement)) => Some(pending.complete(daemon, statement).await?),
        (Some(_), None) => anyhow::bail!("the entity is erased, but the server made no statement for a certificate"),
        (None, _) => None,
    };

    let ErasedAnswer { records, feature_views, .. } = answer;
    let path = certificate.as_ref().map(|wanted| wanted.file);
    if json {
        let mut document_of = json!({ "records": records, "feature_views": feature_views });
        if let (Some(place), Some(path), Some(object)) = (record, path, document_of.as_object_mut()) {
            object.insert("certificate".to_owned(), json!({ "file": path, "log": place.log, "record": place.record }));
        }
        return document(&document_of, out);
    }
    writeln!(out, "erased: {records} records of {feature_views} feature views")?;
    if let (Some(place), Some(path)) = (record, path) {
        writeln!(out, "certificate: {} (record {} of log {})", path.display(), place.record, place.log)?;
    }
    Ok(())
}

/// The answer of `POST /features/erase`.
#[derive(Deserialize)]
struct ErasedAnswer {
    records: u64,
    feature_views: u64,
    #[serde(default)]
    statements: Vec<String>,
}

/// The answer of `GET /audit/erasures/{statement}`.
#[derive(Deserialize)]
struct ProofAnswer {
    log: u32,
    record: u64,
    proof: String,
    verifier_key: String,
}

/// The record of an erasure.
struct RecordPlace {
    log: u32,
    record: u64,
}

/// A certificate that waits for the proof of its record. Its statement is kept in a file next to it, so that the
/// certificate can be completed after a failure.
struct PendingCertificate<'a> {
    path: &'a Path,
    statement: PathBuf,
}

impl<'a> PendingCertificate<'a> {
    fn create(path: &'a Path) -> anyhow::Result<Self> {
        anyhow::ensure!(!path.exists(), "{} exists already: a certificate is never overwritten", path.display());
        let mut name =
            path.file_name().with_context(|| format!("{} is not the name of a file", path.display()))?.to_owned();
        name.push(".statement");
        let statement = path.with_file_name(name);
        anyhow::ensure!(
            !statement.exists(),
            "{} exists already: complete that certificate first, with `ledge features certificate`",
            statement.display()
        );
        let pending = Self { path, statement };
        // An empty file shows that the folder can be written.
        durable::replace_private(&pending.statement, b"")
            .with_context(|| format!("{} cannot be written", pending.statement.display()))?;
        Ok(pending)
    }

    /// Keeps the statement, asks for the proof of its record, and writes the certificate.
    async fn complete(self, daemon: &mut DaemonClient, statement: &str) -> anyhow::Result<RecordPlace> {
        let kept = durable::replace_private(&self.statement, statement.as_bytes());
        kept.with_context(|| format!("the entity is erased, but {} cannot be written", self.statement.display()))?;
        let place = write_certificate(daemon, statement, self.path).await.with_context(|| {
            format!(
                "the entity is erased, but its certificate is not complete; complete it with `ledge features \
                 certificate {} {}`",
                self.statement.display(),
                self.path.display()
            )
        });
        if place.is_ok() {
            std::fs::remove_file(&self.statement)?;
        }
        place
    }
}

impl Drop for PendingCertificate<'_> {
    fn drop(&mut self) {
        // Only where it is still empty: nothing was erased.
        if std::fs::metadata(&self.statement).is_ok_and(|file| file.len() == 0) {
            let _ = std::fs::remove_file(&self.statement);
        }
    }
}

async fn write_certificate(daemon: &mut DaemonClient, statement: &str, path: &Path) -> anyhow::Result<RecordPlace> {
    ErasureStatement::parse(statement)?;
    let hash = ErasureStatement::hash_of(statement);
    let proof: ProofAnswer = daemon.get(&format!("/audit/erasures/{hash}")).await?;
    let ProofAnswer { log, record, proof, verifier_key } = proof;
    let certificate = ErasureCertificate::new(statement.to_owned(), proof, verifier_key.clone());
    // The person who gets it must be able to rely on it, so a wrong one is not written.
    certificate.check(&verifier_key)?;
    let (file, mut writer) = NewFile::create(path, false)?;
    writer.write_all(&certificate.to_bytes())?;
    file.keep()?;
    Ok(RecordPlace { log, record })
}

/// `ledge features certificate`: completes the certificate of an erasure.
pub async fn certificate(
    daemon: &mut DaemonClient,
    statement: &Path,
    path: &Path,
    out: &mut Output,
) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(statement).with_context(|| format!("{} cannot be read", statement.display()))?;
    let place = write_certificate(daemon, &text, path).await?;
    std::fs::remove_file(statement)?;
    writeln!(out, "certificate: {} (record {} of log {})", path.display(), place.record, place.log)?;
    Ok(())
}

/// `ledge features disclose`: what the store has on an entity, and what the audit log of this box has on it.
pub async fn disclose(
    globals: &GlobalArgs,
    daemon: &mut DaemonClient,
    entity: &[String],
    with_log: bool,
    json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    let keys: Map<String, Json> = join_keys(daemon, entity).await?.into_iter().collect();
    let store: Json = daemon.post("/features/disclose", &json!({ "entity": keys })).await?;
    let audit = if with_log { Some(AuditTraces::of(globals, &tagged_entities(&keys, &store)).await?) } else { None };
    if json {
        let mut disclosed = json!({ "entity": keys, "audit": audit });
        if let (Some(all), Json::Object(store)) = (disclosed.as_object_mut(), store) {
            all.extend(store);
        }
        return document(&disclosed, out);
    }

    writeln!(out, "Feature store")?;
    for view in store.get("feature_views").and_then(Json::as_array).into_iter().flatten() {
        write_view(view, out)?;
    }
    for (key, what) in [("unlisted_rows", "rows"), ("unlisted_earlier_rows", "rows of the journal")] {
        if let Some(more @ 1..) = store.get(key).and_then(Json::as_u64) {
            writeln!(out, "  and {more} more {what}, which are not listed")?;
        }
    }
    if let Some(audit) = audit {
        writeln!(out, "\nAudit log")?;
        audit.write(out)?;
    }
    Ok(())
}

/// The most entities whose tags are looked for: those that have the join keys of the entity among others.
const TAGGED_ENTITIES_MAX: usize = 256;

/// The entity, and those in the answer that have its join keys among others: each has a tag of its own.
fn tagged_entities(keys: &Map<String, Json>, store: &Json) -> BTreeSet<Vec<(String, String)>> {
    let named = |keys: &Map<String, Json>| {
        let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut named: Vec<_> = keys.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        named.sort();
        named
    };
    let views = store.get("feature_views").and_then(Json::as_array).into_iter().flatten();
    let rows = views.flat_map(|view| view.get("rows").and_then(Json::as_array).into_iter().flatten());
    let others = rows.filter_map(|row| row.get("join_keys").and_then(Json::as_object)).map(named);
    let mut entities = BTreeSet::from([named(keys)]);
    for entity in others {
        if entities.len() < TAGGED_ENTITIES_MAX {
            entities.insert(entity);
        }
    }
    entities
}

fn write_view(view: &Json, out: &mut Output) -> anyhow::Result<()> {
    let text = |value: &Json, key: &str| value.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    let list = |value: &Json, key: &str| value.get(key).and_then(Json::as_array).cloned().unwrap_or_default();
    let pairs = |value: &Json, key: &str| {
        let pairs = value.get(key).and_then(Json::as_object).into_iter().flatten();
        pairs.map(|(name, value)| (name.clone(), value.to_string())).collect::<Vec<_>>()
    };
    let (rows, journal) = (list(view, "rows"), list(view, "journal"));
    let not_declared = if view.get("declared") == Some(&Json::Bool(false)) { " (not declared any more)" } else { "" };
    writeln!(out, "  {}{not_declared}: {} rows", text(view, "name"), rows.len())?;
    for row in &rows {
        let kept = match text(row, "kept_until").as_str() {
            "" => "no end".to_owned(),
            until => format!("until {until}"),
        };
        let keys: Vec<_> = pairs(row, "join_keys").into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        writeln!(out, "    {} of {}, kept {kept}", keys.join(" "), text(row, "event_timestamp"))?;
        let values = pairs(row, "features").into_iter().chain(pairs(row, "aggregations"));
        let cells: Vec<_> = values.map(|(name, value)| vec![format!("      {name}"), value]).collect();
        columns(&cells, out)?;
    }
    if !journal.is_empty() {
        writeln!(out, "    in the journal, until the next snapshots:")?;
        for row in &journal {
            let values: Vec<_> =
                pairs(row, "features").into_iter().map(|(name, value)| format!("{name}={value}")).collect();
            writeln!(out, "      {}  {}", text(row, "event_timestamp"), values.join(" "))?;
        }
    }
    for profile in &list(view, "profiles") {
        let rows = profile.get("rows").and_then(Json::as_u64).unwrap_or(0);
        writeln!(out, "    what is usual, learnt from {rows} rows until {}:", text(profile, "last_event_timestamp"))?;
        let cells: Vec<_> =
            pairs(profile, "features").into_iter().map(|(name, usual)| vec![format!("      {name}"), usual]).collect();
        columns(&cells, out)?;
    }
    Ok(())
}
