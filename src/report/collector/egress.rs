//! The traffic that left the box: bytes by destination and kind, connections, and pictures of cameras.
//!
//! `egress_counted` records have totals, at each start and after each midnight in UTC. The bytes between two of them
//! belong to the month in which that interval begins: the box sent nothing while it was off.

use std::collections::BTreeMap;
use std::ops::Range;

use ledge_audit::record::AuditRecord;
use ledge_service::audit_event::{AuditEvent, FixedWord};

use crate::document::{ConnectionRow, EgressOfMonth, PictureRow, SentRow};
use crate::evidence::{EvidenceCounter, RecordSelection};

/// The most destinations, and the most rows of each table.
const ROWS_MAX: usize = 1000;

/// Kinds of content that can contain inputs of callers or cameras, as `ledge audit egress` names them.
const INPUT_KINDS: &[&str] = &["calls", "documents", "pictures"];

/// The kind of everything that a connection itself needs.
const PROTOCOL: &str = "protocol";

const COUNTED: &str = "egress_counted";

pub struct EgressCollector {
    /// The moments of the month, in milliseconds since the Unix epoch.
    month: Range<u64>,
    destinations: BTreeMap<(String, String), Destination>,
    connections: BTreeMap<(String, String, String), (u64, EvidenceCounter)>,
    pictures: BTreeMap<String, (u64, EvidenceCounter)>,
    counted_until_ms: Option<u64>,
    unlisted: u64,
    /// Set if an interval of counts is longer than a day and reaches out of the month.
    pub is_uncertain: bool,
}

#[derive(Default)]
struct Destination {
    last: Option<Totals>,
    /// The bytes of the month, by kind.
    sent: BTreeMap<FixedWord, u64>,
    evidence: EvidenceCounter,
}

struct Totals {
    log: u32,
    seq: u64,
    at_ms: u64,
    since_ms: u64,
    sent: BTreeMap<FixedWord, u64>,
}

/// An interval that is longer than this is that of a box that counted before it recorded counts, or could not record.
const INTERVAL_MAX_MS: u64 = 36 * 3_600_000;

impl EgressCollector {
    pub fn new(month: Range<u64>) -> Self {
        Self {
            month,
            destinations: BTreeMap::new(),
            connections: BTreeMap::new(),
            pictures: BTreeMap::new(),
            counted_until_ms: None,
            unlisted: 0,
            is_uncertain: false,
        }
    }

    /// Takes a record of any time.
    pub fn take(&mut self, log: u32, record: &AuditRecord) {
        let in_month = self.month.contains(&record.ts.0);
        match &record.event {
            AuditEvent::EgressCounted { destination, region, since_ms, sent, .. } => {
                let key = (destination.clone(), region.clone());
                let (seq, at_ms, since_ms) = (record.seq, record.ts.0, *since_ms);
                self.take_totals(key, Totals { log, seq, at_ms, since_ms, sent: sent.clone() });
            }
            AuditEvent::ConnectionOpened { destination, region, purpose, others } if in_month => {
                let key = (destination.clone(), region.clone(), purpose.to_string());
                if let Some(counted) = counted(&mut self.connections, key, &mut self.unlisted) {
                    add(counted, 1 + others, log, record.seq);
                }
            }
            AuditEvent::PicturesPublished { camera, pictures } if in_month => {
                if let Some(counted) = counted(&mut self.pictures, camera.to_string(), &mut self.unlisted) {
                    add(counted, *pictures, log, record.seq);
                }
            }
            _ => {}
        }
    }

    fn take_totals(&mut self, key: (String, String), totals: Totals) {
        if !self.destinations.contains_key(&key) && self.destinations.len() >= ROWS_MAX {
            self.unlisted += 1;
            return;
        }
        let destination = self.destinations.entry(key).or_default();
        // Counts that begin again, after damage of their file, continue nothing.
        let before = destination.last.take().filter(|last| last.since_ms == totals.since_ms);
        let began_ms = before.as_ref().map_or(totals.since_ms, |last| last.at_ms);
        if self.month.contains(&began_ms) {
            if let Some(before) = &before
                && destination.sent.is_empty()
            {
                destination.evidence.add(before.log, before.seq);
            }
            destination.evidence.add(totals.log, totals.seq);
            for (kind, total) in &totals.sent {
                let earlier = before.as_ref().and_then(|last| last.sent.get(kind)).copied().unwrap_or(0);
                *destination.sent.entry(kind.clone()).or_default() += total.saturating_sub(earlier);
            }
            self.counted_until_ms = self.counted_until_ms.max(Some(totals.at_ms.min(self.month.end)));
            let is_long = totals.at_ms.saturating_sub(began_ms) > INTERVAL_MAX_MS;
            self.is_uncertain |= is_long && !self.month.contains(&totals.at_ms);
        }
        destination.last = Some(totals);
    }

    /// The tables.
    pub fn finish(self) -> EgressOfMonth {
        let mut sent = Vec::new();
        for ((destination, region), of) in self.destinations {
            let evidence = of.evidence.finish(&RecordSelection::actions(&[COUNTED]));
            let rows = of.sent.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(kind, bytes)| SentRow {
                destination: destination.clone(),
                region: region.clone(),
                kind: kind.to_string(),
                bytes,
                evidence: evidence.clone(),
            });
            sent.extend(rows);
        }
        let is_input = |row: &&SentRow| row.kind != PROTOCOL && INPUT_KINDS.contains(&row.kind.as_str());
        let mut inputs: Vec<String> = sent.iter().filter(is_input).map(|row| row.kind.clone()).collect();
        inputs.sort();
        inputs.dedup();

        let connections =
            self.connections.into_iter().map(|((destination, region, purpose), (connections, records))| {
                let evidence = records.finish(&RecordSelection::actions(&["connection_opened"]));
                ConnectionRow { destination, region, purpose, connections, evidence }
            });
        let pictures = self.pictures.into_iter().map(|(camera, (pictures, records))| {
            let evidence = records.finish(&RecordSelection::actions(&["pictures_published"]));
            PictureRow { camera, pictures, evidence }
        });
        EgressOfMonth {
            sent,
            inputs,
            counted_until: self.counted_until_ms.map(super::time),
            connections: connections.collect(),
            pictures: pictures.collect(),
            unlisted: self.unlisted,
        }
    }
}

fn counted<'m, K: Ord>(
    rows: &'m mut BTreeMap<K, (u64, EvidenceCounter)>,
    key: K,
    unlisted: &mut u64,
) -> Option<&'m mut (u64, EvidenceCounter)> {
    if rows.len() >= ROWS_MAX && !rows.contains_key(&key) {
        *unlisted += 1;
        return None;
    }
    Some(rows.entry(key).or_default())
}

fn add((sum, evidence): &mut (u64, EvidenceCounter), count: u64, log: u32, seq: u64) {
    *sum = sum.saturating_add(count);
    evidence.add(log, seq);
}
