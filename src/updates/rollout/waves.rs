//! Waves: a rollout reaches a growing share of the fleet. Pure.
//!
//! Each box has a different seed for each rollout, so that the same boxes do not always come first. A box counts as
//! reached from the time of the first wave that has its seed, so only another manifest takes that back.

use ledge_base::names::DeviceName;
use serde::{Deserialize, Serialize};

use crate::sha256::sha256;

/// Number of seeds, which go from 0 to one less than this.
pub const SEED_COUNT: u16 = 2048;

const MINUTE_S: u64 = 60;
const HOUR_S: u64 = 60 * MINUTE_S;
const DAY_S: u64 = 24 * HOUR_S;

/// A wave: some time after the start of a rollout, boxes with lower seeds are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wave {
    /// The first seed that is not reached.
    pub seed_below: u16,
    /// The time after the start, in seconds.
    pub after_s: u64,
}

/// A schedule with a name. All but the last are those that Bottlerocket publishes for its own fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WavePreset {
    /// Six days: for releases that are not urgent.
    Default,
    Accelerated,
    /// Three hours: for releases that must not wait.
    Ohno,
    All,
}

impl WavePreset {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Default, Self::Accelerated, Self::Ohno, Self::All];

    /// Returns its name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Accelerated => "accelerated",
            Self::Ohno => "ohno",
            Self::All => "all",
        }
    }

    /// Returns the preset of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Returns shares of the fleet in percent, each with its time in seconds.
    pub fn shares(self) -> &'static [(u16, u64)] {
        match self {
            Self::Default => &[
                (1, HOUR_S),
                (5, 4 * HOUR_S),
                (15, DAY_S),
                (40, 2 * DAY_S),
                (60, 4 * DAY_S),
                (90, 5 * DAY_S),
                (100, 6 * DAY_S),
            ],
            Self::Accelerated => &[(3, HOUR_S), (12, 4 * HOUR_S), (40, 8 * HOUR_S), (80, 16 * HOUR_S), (100, DAY_S)],
            Self::Ohno => {
                &[(5, 30 * MINUTE_S), (25, HOUR_S), (50, 2 * HOUR_S), (90, 150 * MINUTE_S), (100, 3 * HOUR_S)]
            }
            Self::All => &[(100, 0)],
        }
    }

    /// Returns its waves.
    pub fn waves(self) -> Vec<Wave> {
        let wave = |&(percent, after_s): &(u16, u64)| {
            let seed_below = u32::from(SEED_COUNT) * u32::from(percent) / 100;
            Wave { seed_below: u16::try_from(seed_below).unwrap_or(SEED_COUNT), after_s }
        };
        self.shares().iter().map(wave).collect()
    }
}

/// Computes the seed of a box for a rollout: the first 11 bits of SHA-256 of both names, with a newline between them.
pub fn seed(device: &DeviceName, rollout: &DeviceName) -> u16 {
    let [first, second, ..] = sha256(format!("{device}\n{rollout}").as_bytes());
    u16::from_be_bytes([first, second]) >> 5
}

/// Returns the seconds after which a box is reached; `None` when no wave has it. The order of the waves does not
/// matter.
pub fn reached_after_s(waves: &[Wave], seed: u16) -> Option<u64> {
    waves.iter().filter(|wave| seed < wave.seed_below).map(|wave| wave.after_s).min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> DeviceName {
        text.parse().unwrap()
    }

    #[test]
    fn a_seed_is_what_the_platform_computes() {
        // By coreutils: printf 'box-1\nr-0042' | sha256sum, its first 11 bits.
        assert_eq!(seed(&name("box-1"), &name("r-0042")), 633);
    }

    #[test]
    fn the_platform_has_the_same_seeds_and_presets() {
        let shared: serde_json::Value =
            serde_json::from_str(include_str!("../../../packaging/platform/tests/seeds.json")).unwrap();
        for vector in shared["seeds"].as_array().unwrap() {
            let text = |key: &str| name(vector[key].as_str().unwrap());
            assert_eq!(
                u64::from(seed(&text("device"), &text("rollout"))),
                vector["seed"].as_u64().unwrap(),
                "{vector}"
            );
        }
        let presets = shared["presets"].as_object().unwrap();
        assert_eq!(presets.len(), WavePreset::ALL.len());
        for (name, waves) in presets {
            assert_eq!(serde_json::to_value(WavePreset::named(name).unwrap().waves()).unwrap(), *waves, "{name}");
        }
    }

    #[test]
    fn each_wave_of_each_preset_reaches_its_share_of_ten_thousand_boxes() {
        const ROLLOUTS: usize = 16;
        let rollouts: Vec<Vec<u16>> = (0..ROLLOUTS)
            .map(|number| {
                let rollout = name(&format!("r-{number}"));
                (0..10_000).map(|number| seed(&name(&format!("ledge-{number:032x}")), &rollout)).collect()
            })
            .collect();
        for preset in WavePreset::ALL {
            let waves = preset.waves();
            for (percent, after_s) in preset.shares() {
                let reached = |seeds: &Vec<u16>| {
                    seeds.iter().filter(|seed| reached_after_s(&waves, **seed).unwrap() <= *after_s).count()
                };
                let counts: Vec<usize> = rollouts.iter().map(reached).collect();
                let expected = usize::from(*percent) * 100;
                // Seeds are drawn, so a single rollout is off by up to some standard deviations, of which one is 50
                // boxes at half of the fleet; all of them together are off by less than the rounding of a percent to
                // seeds.
                for count in &counts {
                    assert!(count.abs_diff(expected) <= 200, "{preset:?} after {after_s} s: {count} of {expected}");
                }
                let mean = counts.iter().sum::<usize>() / ROLLOUTS;
                assert!(mean.abs_diff(expected) <= 50, "{preset:?} after {after_s} s: {mean} of {expected}");
            }
        }
    }

    #[test]
    fn the_same_boxes_do_not_come_first_in_each_rollout() {
        let first = |rollout: &str| -> Vec<u32> {
            (0..10_000).filter(|number| seed(&name(&format!("box-{number}")), &name(rollout)) < 102).collect()
        };
        let (one, other) = (first("r-1"), first("r-2"));
        let both = one.iter().filter(|number| other.contains(number)).count();
        // 5 % of 5 % would be 25.
        assert!(both < 60, "{both} of {} come first in both", one.len());
    }

    proptest! {
        #[test]
        fn the_order_of_waves_does_not_matter(
            mut waves in prop::collection::vec((0..=SEED_COUNT, 0..1000_u64), 0..8),
            seed in 0..SEED_COUNT,
        ) {
            let as_waves = |waves: &[(u16, u64)]| -> Vec<Wave> {
                waves.iter().map(|&(seed_below, after_s)| Wave { seed_below, after_s }).collect()
            };
            let before = reached_after_s(&as_waves(&waves), seed);
            waves.reverse();
            prop_assert_eq!(reached_after_s(&as_waves(&waves), seed), before);
            waves.sort_unstable();
            prop_assert_eq!(reached_after_s(&as_waves(&waves), seed), before);
        }
    }
}
