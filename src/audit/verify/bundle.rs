//! Entry bundles: records one behind the other, each behind its length in two bytes.

/// Why bytes are no entry bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it ends within its record {whole}")]
pub struct Torn {
    /// How many whole records are before.
    pub whole: usize,
    /// How many bytes these take.
    pub length: usize,
}

/// The records of a bundle, the lengths left out.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    whole: usize,
    length: usize,
}

/// The records of a bundle, one by one; after an error nothing comes.
pub fn records(bundle: &[u8]) -> Records<'_> {
    Records { rest: bundle, whole: 0, length: 0 }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<&'a [u8], Torn>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let split = self.rest.split_first_chunk().and_then(|(length, rest)| {
            let length = usize::from(u16::from_be_bytes(*length));
            rest.split_at_checked(length)
        });
        let Some((record, rest)) = split else {
            self.rest = &[];
            return Some(Err(Torn { whole: self.whole, length: self.length }));
        };
        self.rest = rest;
        self.whole += 1;
        self.length += 2 + record.len();
        Some(Ok(record))
    }
}

/// How many bytes the first `count` records take; `None` when there are fewer.
pub fn length_of(bundle: &[u8], count: u16) -> Option<usize> {
    let count = usize::from(count);
    let mut records = records(bundle);
    let whole = records.by_ref().take(count).take_while(Result::is_ok).count();
    (whole == count).then_some(records.length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bundle(records: &[Vec<u8>]) -> Vec<u8> {
        let one = |record: &Vec<u8>| [&u16::try_from(record.len()).unwrap().to_be_bytes(), record.as_slice()].concat();
        records.iter().flat_map(one).collect()
    }

    proptest! {
        #[test]
        fn what_was_bundled_is_split_again(all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20), cut in 0.0..1.0) {
            let bytes = bundle(&all);
            let split: Vec<_> = records(&bytes).map(Result::unwrap).collect();
            prop_assert_eq!(&split, &all);
            for count in 0..=all.len() {
                let count = u16::try_from(count).unwrap();
                prop_assert_eq!(length_of(&bytes, count), Some(bundle(&all[..usize::from(count)]).len()));
            }
            prop_assert_eq!(length_of(&bytes, u16::try_from(all.len() + 1).unwrap()), None);
            // Cut anywhere, it is the records before and an error, unless it is cut between two.
            #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a place in a few bytes")]
            let at = (bytes.len() as f64 * cut) as usize;
            let split: Vec<_> = records(&bytes[..at]).collect();
            let whole = split.iter().filter(|record| record.is_ok()).count();
            prop_assert_eq!(split.last().is_some_and(Result::is_err), bundle(&all[..whole]).len() != at);
            prop_assert!(split.iter().flatten().zip(&all).all(|(record, all)| record == all));
        }
    }
}
