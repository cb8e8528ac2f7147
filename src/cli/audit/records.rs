//! Reading records from any position of a log, without reading all of it.

use std::io::Write as _;

use bytes::Bytes;
use ledge_audit::files::{AuditFilesError, AuditLogFiles, tile_of};
use ledge_audit::layout::{TILE_WIDTH, TileKind, whole_entries};
use ledge_audit::record::AuditRecord;
use ledge_service::audit_event::AuditEvent;

use super::super::Output;
use super::filter::RecordFilter;

/// A reader of one log.
pub struct LogReader<'a> {
    files: &'a AuditLogFiles,
    /// The number of records by the checkpoint.
    size: u64,
}

/// A line of the log, and the record in it.
pub struct AuditLogLine {
    pub seq: u64,
    pub text: Vec<u8>,
    /// `None` if the line is damaged.
    pub record: Option<AuditRecord>,
}

impl<'a> LogReader<'a> {
    /// Opens a log, without checking the signature of its checkpoint.
    pub async fn open(files: &'a AuditLogFiles) -> anyhow::Result<Self> {
        let note = files.checkpoint().await?.unwrap_or_default();
        // The second line of the checkpoint. Its signature is not checked here; that is the job of `verify`.
        let size = std::str::from_utf8(&note).ok().and_then(|note| note.lines().nth(1)?.parse().ok());
        Ok(Self { files, size: size.unwrap_or(0) })
    }

    /// The records of a bundle; `None` if it does not exist.
    pub async fn bundle(&self, index: u64) -> anyhow::Result<Option<Vec<AuditLogLine>>> {
        let bytes = if self.files.is_local() {
            self.files.local_bundle(index)?
        } else {
            let tile = tile_of(TileKind::Entries, index, self.size);
            if tile.width == 0 { None } else { self.files.tile(tile).await? }
        };
        Ok(bytes.map(|bytes| lines(index, &bytes)))
    }

    /// The range of bundles that may exist: the first one, and the one after the last. Pruned bundles and future ones
    /// are outside it.
    pub fn range(&self) -> anyhow::Result<(u64, u64)> {
        let mut end = self.size.div_ceil(TILE_WIDTH);
        let AuditLogFiles::Local(log) = self.files else { return Ok((0, end)) };
        let first = log.first(self.size).map_err(|error| AuditFilesError::of(log.folder(), error))?;
        // Include the records after the head.
        while self.files.local_bundle(end)?.is_some() {
            end += 1;
        }
        Ok((first / TILE_WIDTH, end))
    }

    /// The first bundle that may contain records from the time `since` on, by binary search.
    pub async fn seek(&self, since: u64, first: u64, end: u64) -> anyhow::Result<u64> {
        let (mut low, mut high) = (first, end);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.first_time(middle).await? {
                Some(at) if at >= since => high = middle,
                _ => low = middle + 1,
            }
        }
        // The bundle before may begin earlier and reach into that time.
        Ok(low.saturating_sub(1).max(first))
    }

    /// The time of the first record of a bundle.
    pub async fn first_time(&self, index: u64) -> anyhow::Result<Option<u64>> {
        let lines = self.bundle(index).await?.unwrap_or_default();
        Ok(lines.into_iter().find_map(|line| line.record).map(|record| record.ts.0))
    }

    /// Passes every record of a filter to `found`, the oldest first. Returns the record at which the clock went back.
    pub async fn for_each(
        &self,
        filter: &RecordFilter,
        mut found: impl FnMut(AuditLogLine) -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<u64>> {
        let (mut first, mut end) = self.range()?;
        first = first.max(filter.seq.first / TILE_WIDTH);
        end = end.min((filter.seq.last / TILE_WIDTH).saturating_add(1));
        if !filter.scan && filter.since > 0 {
            first = self.seek(filter.since, first, end).await?;
        }

        let mut went_back = None;
        for index in first..end {
            let lines = self.bundle(index).await?.unwrap_or_default();
            let begins = lines.iter().find_map(|line| line.record.as_ref()).map(|record| record.ts.0);
            for line in lines {
                match &line.record {
                    Some(record) => {
                        if matches!(record.event, AuditEvent::ClockJumped { by_ms } if by_ms < 0) {
                            went_back = Some(record.seq);
                        }
                        if filter.matches(record) {
                            found(line)?;
                        }
                    }
                    None => report_damaged(line.seq),
                }
            }
            if !filter.scan && begins.is_some_and(|begins| begins > filter.until) {
                break;
            }
        }
        Ok(went_back)
    }
}

fn lines(index: u64, bytes: &Bytes) -> Vec<AuditLogLine> {
    let records = (index * TILE_WIDTH..).zip(whole_entries(bytes).0);
    let line =
        |(seq, text): (u64, &[u8])| AuditLogLine { seq, text: text.to_vec(), record: AuditRecord::parse(text).ok() };
    records.map(line).collect()
}

/// Warns on standard error about a damaged record.
pub fn report_damaged(seq: u64) {
    let _ = writeln!(std::io::stderr(), "ledge: record {seq} is damaged; run `ledge audit verify` for details");
}

/// Writes one record: its line unchanged, or as text in columns.
pub fn write(line: &AuditLogLine, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let Some(record) = line.record.as_ref().filter(|_| !json) else {
        out.write_all(&line.text)?;
        return Ok(writeln!(out)?);
    };
    let kind = record.actor.kind.as_str();
    // Eight digits are enough to distinguish callers by eye; --json has all digits.
    let tag = record.actor.tag.map(|tag| tag.to_string()).unwrap_or_default();
    let short = tag.find(':').and_then(|at| tag.get(..at + 9)).unwrap_or_default();
    let actor = format!("{kind} {short}");
    writeln!(
        out,
        "{:>8}  {:<24}  {:<18}  {}",
        record.seq,
        record.ts.to_string(),
        actor.trim_end(),
        describe(&record.event)
    )?;
    Ok(())
}

/// The action of an event and its fields.
fn describe(event: &AuditEvent) -> String {
    let mut text = event.action().to_owned();
    let fields = serde_json::to_value(event).ok();
    let fields = fields.as_ref().and_then(serde_json::Value::as_object).into_iter().flatten();
    for (name, value) in fields.filter(|(name, value)| *name != "action" && !value.is_null()) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text = format!("{text} {name}={value}");
    }
    text
}
