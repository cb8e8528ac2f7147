//! A version that an update tries next to the live ones: its requests, and the reports of serving about them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ledge_base::names::ModelVersion;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::loaded_model::LoadedModel;
use super::observations::{ComparedVersion, Observations};

/// The most requests mirrored to one candidate at a time. Each holds its inputs; a request that comes while all are in
/// progress is not mirrored.
const MIRRORED_REQUESTS_MAX: usize = 4;

/// A version that is tried next to the live ones.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub model: Arc<LoadedModel>,
    pub share: CandidateShare,
    /// Counts of its requests, and of those of the live version meanwhile.
    pub observations: Arc<Observations>,
}

/// Share of the requests without a version that a candidate sees, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CandidateShare {
    /// The live version answers this share, and the candidate runs it afterwards. Its answers are not sent to callers.
    Shadow(f64),
    /// This share is answered by the candidate, and so are requests for its version number.
    Canary(f64),
}

/// A candidate in its slot.
#[derive(Debug)]
pub(super) struct RunningCandidate {
    pub candidate: Candidate,
    drawn: AtomicU64,
    places: Arc<Semaphore>,
    /// Ends the mirrored requests when the candidate is removed.
    pub stop: CancellationToken,
}

/// The version that answers one request, and the counts of an update.
#[derive(Debug)]
pub struct Pinned {
    pub model: Arc<LoadedModel>,
    /// `None` when no update watches the request.
    pub watched: Option<WatchedCall>,
}

/// A request that an update watches.
#[derive(Debug)]
pub struct WatchedCall {
    pub observations: Arc<Observations>,
    pub role: ComparedVersion,
    /// The other version on which the request is repeated: the candidate after an answer that is mirrored; the
    /// incumbent after a failure of the candidate, to find the cause.
    pub other: Option<MirrorVersion>,
}

/// A version on which a request to another one is repeated in the background.
#[derive(Debug, Clone)]
pub struct MirrorVersion {
    pub model: Arc<LoadedModel>,
    /// Places for repeated requests in progress.
    pub places: Arc<Semaphore>,
    pub stop: CancellationToken,
}

impl Pinned {
    /// A request that no update watches.
    pub fn unwatched(model: Arc<LoadedModel>) -> Self {
        Self { model, watched: None }
    }

    pub(super) fn soaking(model: Arc<LoadedModel>, observations: Arc<Observations>) -> Self {
        Self { model, watched: Some(WatchedCall { observations, role: ComparedVersion::Candidate, other: None }) }
    }
}

impl RunningCandidate {
    pub fn new(candidate: Candidate) -> Self {
        let places = Arc::new(Semaphore::new(MIRRORED_REQUESTS_MAX));
        Self { candidate, drawn: AtomicU64::new(0), places, stop: CancellationToken::new() }
    }

    /// Chooses the version that answers a request without a version.
    pub fn pin(&self, live: &Arc<LoadedModel>) -> Pinned {
        let Candidate { model, share, observations } = &self.candidate;
        let other = |model: &Arc<LoadedModel>| MirrorVersion {
            model: model.clone(),
            places: self.places.clone(),
            stop: self.stop.clone(),
        };
        let place = self.drawn.fetch_add(1, Ordering::Relaxed);
        let (model, role, other) = match *share {
            CandidateShare::Shadow(share) => {
                (live, ComparedVersion::Incumbent, is_in_share(place, share).then(|| other(model)))
            }
            CandidateShare::Canary(share) if is_in_share(place, share) => {
                (model, ComparedVersion::Candidate, Some(other(live)))
            }
            CandidateShare::Canary(_) => (live, ComparedVersion::Incumbent, None),
        };
        let watched = WatchedCall { observations: observations.clone(), role, other };
        Pinned { model: model.clone(), watched: Some(watched) }
    }

    /// The candidate, if it has this version number and may answer.
    pub fn numbered(&self, version: ModelVersion) -> Option<Arc<LoadedModel>> {
        let Candidate { model, share, .. } = &self.candidate;
        (matches!(share, CandidateShare::Canary(_)) && model.version == version).then(|| model.clone())
    }
}

/// True when the request at this place falls into the share.
///
/// Places are spread by the golden ratio (a Weyl sequence), so any stretch of requests has its share to within a few,
/// and a caller that sends every second or tenth request is neither always nor never in it. With a plain counter and
/// three cameras in turn, a share of a third would have the requests of only one camera.
fn is_in_share(place: u64, share: f64) -> bool {
    const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
    #[expect(clippy::cast_precision_loss, reason = "a share has no more than 53 bits")]
    let at = place.wrapping_mul(GOLDEN_RATIO) as f64 / 2_f64.powi(64);
    share >= 1.0 || at < share
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nobody_and_everybody_are_exact() {
        for place in (0..10_000).chain([u64::MAX, u64::MAX / 2]) {
            assert!(!is_in_share(place, 0.0) && is_in_share(place, 1.0));
        }
    }

    proptest! {
        #[test]
        fn every_caller_in_turn_has_the_share_of_its_requests(
            share in 0.0..1.0_f64,
            callers in 1_u64..20,
            first in 0..1_000_000_u64,
        ) {
            for caller in 0..callers {
                let drawn = (0..1000).filter(|turn| is_in_share(first + caller + turn * callers, share)).count();
                #[expect(clippy::cast_precision_loss, reason = "small")]
                let off = (drawn as f64 - 1000.0 * share).abs();
                prop_assert!(off < 30.0, "{callers} callers, share {share}: {drawn} of 1000");
            }
        }

        #[test]
        fn any_stretch_of_requests_has_its_share_to_within_a_few(
            share in 0.0..1.0_f64,
            first in 0..1_000_000_u64,
            length in 1..2_000_u32,
        ) {
            let drawn = (first..first + u64::from(length)).filter(|&place| is_in_share(place, share)).count();
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let off = (drawn as f64 - f64::from(length) * share).abs();
            prop_assert!(off < 4.0, "{drawn} of {length}, share {share}");
        }
    }
}
