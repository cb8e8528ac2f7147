//! The traces of one entity in the audit logs of this box, found by its tags.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use serde::Serialize;
use serde_json::Value as Json;

use super::super::{GlobalArgs, Output};
use super::filter::AuditFilterArgs;
use super::logs::AuditLogArgs;
use super::records::LogReader;

/// The most records that are listed for each log. Further ones are counted.
const RECORDS_MAX: usize = 1000;

/// The records about one entity.
#[derive(Serialize)]
pub struct AuditTraces {
    logs: Vec<LogTraces>,
}

#[derive(Serialize)]
struct LogTraces {
    /// The number of the log.
    log: Option<u32>,
    /// The number of records for each action.
    actions: BTreeMap<&'static str, u64>,
    /// The records themselves.
    records: Vec<Json>,
    /// The number of records that are not listed.
    unlisted: u64,
}

impl AuditTraces {
    /// Finds the records that have the tag of one of the entities, each with its join keys, in the logs of this box.
    pub async fn of(globals: &GlobalArgs, entities: &BTreeSet<Vec<(String, String)>>) -> anyhow::Result<Self> {
        let filter = |entity: &Vec<(String, String)>| {
            AuditFilterArgs { entity: entity.clone(), ..AuditFilterArgs::default() }.resolve(globals)
        };
        let filters = entities.iter().map(filter).collect::<anyhow::Result<Vec<_>>>()?;
        let all = AuditFilterArgs::default().resolve(globals)?;
        let found = AuditLogArgs::default().find_files(globals).await?;
        let mut logs = Vec::new();
        for place in &found.places {
            let mut traces =
                LogTraces { log: place.generation, actions: BTreeMap::new(), records: Vec::new(), unlisted: 0 };
            let log = LogReader::open(&place.files).await?;
            log.for_each(&all, |line| {
                if !line.record.as_ref().is_some_and(|record| filters.iter().any(|filter| filter.matches(record))) {
                    return Ok(());
                }
                if let Some(record) = &line.record {
                    *traces.actions.entry(record.event.action()).or_default() += 1;
                }
                if traces.records.len() < RECORDS_MAX {
                    let without_tags = line.record.map(|record| {
                        // The tags of the other entities of the minute are not about this one.
                        let mut record = serde_json::to_value(&record).unwrap_or_default();
                        if let Some(event) = record.get_mut("event").and_then(Json::as_object_mut) {
                            event.remove("entities");
                        }
                        record
                    });
                    traces.records.extend(without_tags);
                } else {
                    traces.unlisted += 1;
                }
                Ok(())
            })
            .await?;
            logs.push(traces);
        }
        Ok(Self { logs })
    }

    /// Writes the traces for people.
    pub fn write(&self, out: &mut Output) -> anyhow::Result<()> {
        for traces in &self.logs {
            let log = traces.log.map_or_else(String::new, |log| format!(" {log}"));
            let counts: Vec<_> = traces.actions.iter().map(|(action, count)| format!("{action} {count}")).collect();
            let counts =
                if counts.is_empty() { "no record has the tag of the entity".to_owned() } else { counts.join(", ") };
            writeln!(out, "  log{log}: {counts}")?;
            for record in &traces.records {
                let text = |pointer: &str| match record.pointer(pointer) {
                    None | Some(Json::Null) => String::new(),
                    Some(Json::String(text)) => text.clone(),
                    Some(other) => other.to_string(),
                };
                writeln!(
                    out,
                    "    {}  {}  {} {}",
                    text("/seq"),
                    text("/ts"),
                    text("/event/action"),
                    text("/event/feature_view")
                )?;
            }
            if traces.unlisted > 0 {
                writeln!(out, "    and {} more", traces.unlisted)?;
            }
        }
        writeln!(
            out,
            "  A record has the tags of audit.feature_entities entities of its minute, and only counts the others. Tags \
             whose key is destroyed cannot be found any more."
        )?;
        Ok(())
    }
}
