//! The records that a number was made of.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// The most records that are named one by one. More are named by their range, and by the options that select them.
const LISTED_MAX: usize = 8;

/// Records of one log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The number of the log on the box.
    pub log: u32,
    /// The first and the last record.
    pub first: u64,
    pub last: u64,
    /// The number of records.
    pub records: u64,
    /// Each record, if there are few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seqs: Vec<u64>,
    /// The options with which `ledge audit show` prints exactly these records.
    pub show: String,
}

/// The options that select the records of a number, without their range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordSelection {
    actions: Vec<&'static str>,
    model: Option<String>,
    feature_view: Option<String>,
    /// A kind or a tag, as `--actor` takes it.
    actor: Option<String>,
}

impl RecordSelection {
    /// Records of these actions.
    pub fn actions(actions: &[&'static str]) -> Self {
        Self { actions: actions.to_vec(), ..Self::default() }
    }

    #[must_use]
    pub fn model(self, model: impl fmt::Display) -> Self {
        Self { model: Some(model.to_string()), ..self }
    }

    #[must_use]
    pub fn feature_view(self, view: &str) -> Self {
        Self { feature_view: Some(view.to_owned()), ..self }
    }

    #[must_use]
    pub fn actor(self, actor: impl fmt::Display) -> Self {
        Self { actor: Some(actor.to_string()), ..self }
    }

    fn options(&self, log: u32, first: u64, last: u64) -> String {
        let mut text = format!("--generation {log} --seq {first}..{last}");
        let mut option = |name: &str, value: &str| text = format!("{text} --{name} {value}");
        self.actions.iter().for_each(|action| option("action", action));
        for (name, value) in [("model", &self.model), ("feature-view", &self.feature_view), ("actor", &self.actor)] {
            if let Some(value) = value {
                option(name, value);
            }
        }
        text
    }
}

/// The records of a number, while it is counted.
#[derive(Debug, Clone, Default)]
pub struct EvidenceCounter {
    logs: BTreeMap<u32, RecordSpan>,
}

#[derive(Debug, Clone, Default)]
struct RecordSpan {
    first: u64,
    last: u64,
    records: u64,
    seqs: Vec<u64>,
}

impl EvidenceCounter {
    /// A single record.
    pub fn one(log: u32, seq: u64) -> Self {
        let mut counter = Self::default();
        counter.add(log, seq);
        counter
    }

    /// Counts a record.
    pub fn add(&mut self, log: u32, seq: u64) {
        let span = self.logs.entry(log).or_insert_with(|| RecordSpan { first: seq, ..RecordSpan::default() });
        span.last = seq;
        span.records += 1;
        if span.seqs.len() <= LISTED_MAX {
            span.seqs.push(seq);
        }
    }

    /// The records, which `selection` selects within their range.
    pub fn finish(&self, selection: &RecordSelection) -> Vec<Evidence> {
        let evidence = |(log, span): (&u32, &RecordSpan)| {
            let RecordSpan { first, last, records, seqs } = span;
            let seqs = if seqs.len() <= LISTED_MAX { seqs.clone() } else { Vec::new() };
            let show = selection.options(*log, *first, *last);
            Evidence { log: *log, first: *first, last: *last, records: *records, seqs, show }
        };
        self.logs.iter().map(evidence).collect()
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.seqs.is_empty() {
            return write!(f, "{}/{}–{} ({} records)", self.log, self.first, self.last, self.records);
        }
        let seqs: Vec<_> = self.seqs.iter().map(u64::to_string).collect();
        write!(f, "{}/{}", self.log, seqs.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_records_are_named_and_many_are_a_range_with_their_selection() {
        let mut counter = EvidenceCounter::default();
        for seq in [3, 5, 9] {
            counter.add(1, seq);
        }
        let selection = RecordSelection::actions(&["inference_minute"]).model("minilm").actor("local");
        let [few] = counter.finish(&selection).try_into().unwrap();
        assert_eq!((few.to_string(), few.records), ("1/3, 5, 9".into(), 3));
        assert_eq!(few.show, "--generation 1 --seq 3..9 --action inference_minute --model minilm --actor local");
        (10..20).for_each(|seq| counter.add(1, seq));
        counter.add(2, 0);
        let [many, next] = counter.finish(&selection).try_into().unwrap();
        assert_eq!((many.to_string(), next.to_string()), ("1/3–19 (13 records)".into(), "2/0".into()));
    }
}
