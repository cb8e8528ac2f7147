//! The connected parts of a map: pixels that are set and touch, corners included.

/// The pixels of one part, as runs.
pub(super) type PixelComponent = Vec<PixelRun>;

/// Pixels next to each other in one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PixelRun {
    pub(super) row: usize,
    pub(super) start: usize,
    /// The pixel after the last one.
    pub(super) end: usize,
}

/// The connected parts, in the order of their first pixels. `rows` are the runs of each row, from left to right.
pub(super) fn components(rows: &[Vec<PixelRun>]) -> Vec<PixelComponent> {
    let mut sets = DisjointSets::default();
    let mut above: (usize, &[PixelRun]) = (0, &[]);
    for runs in rows {
        let first = sets.add(runs.len());
        let mut candidates = above.1.iter().enumerate().peekable();
        for (index, run) in runs.iter().enumerate() {
            // A run above touches this one if at most a corner is between them.
            while candidates.next_if(|(_, upper)| upper.end < run.start).is_some() {}
            let touching = candidates.clone().take_while(|(_, upper)| upper.start <= run.end);
            for (upper, _) in touching {
                sets.join(above.0 + upper, first + index);
            }
        }
        above = (first, runs);
    }

    let mut places = vec![None; sets.parents.len()];
    let mut found: Vec<PixelComponent> = Vec::new();
    for (index, run) in rows.iter().flatten().enumerate() {
        let Some(place) = places.get_mut(sets.root(index)) else { continue };
        let place = *place.get_or_insert_with(|| {
            found.push(Vec::new());
            found.len() - 1
        });
        if let Some(component) = found.get_mut(place) {
            component.push(*run);
        }
    }
    found
}

/// Disjoint sets, each with its smallest member as the root.
#[derive(Default)]
struct DisjointSets {
    parents: Vec<usize>,
}

impl DisjointSets {
    /// Adds `count` members, each in a separate set; returns the first.
    fn add(&mut self, count: usize) -> usize {
        let first = self.parents.len();
        self.parents.extend(first..first + count);
        first
    }

    fn root(&mut self, mut member: usize) -> usize {
        while let Some(&parent) = self.parents.get(member)
            && parent != member
        {
            // Halves the path for the next search.
            let grandparent = self.parents.get(parent).copied().unwrap_or(parent);
            if let Some(place) = self.parents.get_mut(member) {
                *place = grandparent;
            }
            member = grandparent;
        }
        member
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        if let Some(place) = self.parents.get_mut(one.max(other)) {
            *place = one.min(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs(map: &[Vec<bool>]) -> Vec<Vec<PixelRun>> {
        let row = |(row, pixels): (usize, &Vec<bool>)| {
            let starts = (0..pixels.len()).filter(|&x| pixels[x] && (x == 0 || !pixels[x - 1]));
            let end = |start| (start..pixels.len()).find(|&x| !pixels[x]).unwrap_or(pixels.len());
            starts.map(|start| PixelRun { row, start, end: end(start) }).collect()
        };
        map.iter().enumerate().map(row).collect()
    }

    /// The pixels of each part, found by walking from pixel to pixel.
    fn parts_by_walking(map: &[Vec<bool>]) -> Vec<Vec<(usize, usize)>> {
        let mut seen = std::collections::BTreeSet::new();
        let is_set = |(y, x): (usize, usize)| map.get(y).and_then(|row| row.get(x)) == Some(&true);
        let mut parts = Vec::new();
        for start in (0..map.len()).flat_map(|y| (0..map[y].len()).map(move |x| (y, x))) {
            let (mut part, mut waiting) = (Vec::new(), vec![start]);
            while let Some(pixel @ (y, x)) = waiting.pop() {
                if is_set(pixel) && seen.insert(pixel) {
                    part.push(pixel);
                    let around = (0..3).flat_map(|dy| (0..3).map(move |dx| (dy, dx)));
                    waiting.extend(
                        around.filter_map(|(dy, dx)| Some(((y + dy).checked_sub(1)?, (x + dx).checked_sub(1)?))),
                    );
                }
            }
            if !part.is_empty() {
                part.sort_unstable();
                parts.push(part);
            }
        }
        parts
    }

    proptest! {
        #[test]
        fn they_are_those_that_a_walk_finds(
            map in proptest::collection::vec(proptest::collection::vec(proptest::bool::weighted(0.4), 1..24), 1..24),
        ) {
            let found: Vec<Vec<(usize, usize)>> = components(&runs(&map))
                .into_iter()
                .map(|part| part.iter().flat_map(|run| (run.start..run.end).map(|x| (run.row, x))).collect())
                .collect();
            prop_assert_eq!(found, parts_by_walking(&map));
        }
    }
}
