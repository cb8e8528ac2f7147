//! The figures as one table.

use std::fmt::Write;

use serde_json::json;

use crate::contender::Contender;
use crate::load::Figures;

/// The rows of the table in order, each with the rounds of each store.
#[derive(Debug)]
pub struct Report {
    stores: Vec<Contender>,
    rows: Vec<(String, Vec<Vec<Figures>>)>,
}

impl Report {
    pub fn new(stores: &[Contender]) -> Self {
        Self { stores: stores.to_vec(), rows: Vec::new() }
    }

    pub fn add(&mut self, store: Contender, what: &str, figures: Figures) {
        if !self.rows.iter().any(|(known, _)| known == what) {
            self.rows.push((what.to_owned(), vec![Vec::new(); self.stores.len()]));
        }
        let (_, row) = self.rows.iter_mut().find(|(known, _)| known == what).unwrap();
        let store = self.stores.iter().position(|known| *known == store).unwrap();
        let rounds = row.get_mut(store).unwrap();
        rounds.push(figures);
        if let Some(line) = line(rounds.last().map_or(&[], std::slice::from_ref)) {
            eprintln!("{what}: {} {line}", self.stores.get(store).unwrap().name());
        }
    }

    pub fn table(&self) -> String {
        let mut text = String::new();
        for (what, stores) in &self.rows {
            writeln!(text, "{what}").unwrap();
            for (store, rounds) in self.stores.iter().zip(stores) {
                if let Some(line) = line(rounds) {
                    writeln!(text, "    {:<6} {line}", store.name()).unwrap();
                }
            }
        }
        text
    }

    /// The rounds of a row, for each store.
    pub fn rounds(&self, what: &str) -> Vec<(&'static str, &[Figures])> {
        let row = self.rows.iter().find(|(known, _)| known == what);
        let stores = row.into_iter().flat_map(|(_, stores)| self.stores.iter().zip(stores));
        stores.map(|(store, rounds)| (store.name(), rounds.as_slice())).collect()
    }

    pub fn json(&self) -> String {
        let rows = self.rows.iter().map(|(what, stores)| {
            let stores = self.stores.iter().zip(stores).map(|(store, rounds)| (store.name().to_owned(), json!(rounds)));
            json!({"what": what, "rounds": stores.collect::<serde_json::Map<_, _>>()})
        });
        json!({"machine": crate::process::machine(), "rows": rows.collect::<Vec<_>>()}).to_string()
    }
}

fn median(rounds: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    *values.get(values.len() / 2).unwrap()
}

fn line(rounds: &[Figures]) -> Option<String> {
    let last = rounds.last()?;
    let middle = |of: fn(&Figures) -> f64| median(rounds, of);
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let mut text = if last.operations > 0 {
        format!(
            "{:>9.0}/s   p50 {:>8.1} us   p99 {:>9.1} us   max {:>9.0} us   CPU {:>6.1} us each",
            middle(|each| each.operations as f64 / each.seconds),
            middle(|each| each.p50_us),
            middle(|each| each.p99_us),
            rounds.iter().map(|each| each.max_us).fold(0.0, f64::max),
            middle(|each| each.cpu_us),
        )
    } else if last.seconds > 0.001 {
        format!("{:.2} s", last.seconds)
    } else {
        let sizes = last.sizes?;
        format!("memory {:.0} MB (at most {:.0}), disk {:.0} MB", sizes.rss_mb, sizes.peak_mb, sizes.disk_mb)
    };
    if !last.note.is_empty() {
        write!(text, "   {}", last.note).unwrap();
    }
    Some(text)
}
