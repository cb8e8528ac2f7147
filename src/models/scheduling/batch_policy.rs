//! Dynamic batching: the rule by which requests of several callers become one run of the model.

use std::time::Duration;

/// Rule for joining requests into one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPolicy {
    /// The most batch elements of one run.
    pub max_rows: usize,
    /// Time that the first request may wait for others; zero takes the requests that already wait.
    pub delay: Duration,
    /// The sizes that runs should have, ascending. The model was warmed up with them, so no size is compiled while
    /// callers wait.
    pub preferred: Vec<usize>,
}

impl BatchPolicy {
    /// A policy with the powers of two up to `max_rows` as its sizes: any number of waiting single rows splits into a
    /// few runs of sizes that were warmed up.
    pub fn powers_of_two(max_rows: usize, delay: Duration) -> Self {
        let max_rows = max_rows.max(1);
        let powers = (0..usize::BITS).map(|bit| 1_usize << bit);
        Self { max_rows, delay, preferred: powers.take_while(|&size| size <= max_rows).collect() }
    }

    /// True when `rows` is one of the preferred sizes.
    pub fn is_preferred(&self, rows: usize) -> bool {
        self.preferred.binary_search(&rows).is_ok()
    }

    /// Number of waiting rows from which on waiting for more gains nothing.
    pub fn worth_waiting_for(&self) -> usize {
        self.preferred.last().copied().unwrap_or(self.max_rows).min(self.max_rows)
    }
}

#[cfg(test)]
mod tests;
