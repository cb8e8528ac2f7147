//! Admission of calls: quotas of callers, limits of models, and the time of day for background work.
//!
//! The daemon itself and a command line on this box are always admitted. A refused call takes nothing from a quota.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_base::token_bucket::{BucketRefill, CallRate, TokenBucket};
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, UnitWeighter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::windows::{self, DailyWindow};
use crate::repository::model_config::CallLimits;

/// Bound on the callers that are remembered. The least active ones are forgotten first, but never one with a call in
/// progress.
const PRINCIPALS_MAX: usize = 16_384;

/// Time after which a caller at its limit of concurrent calls may try again: the time of the calls in progress is not
/// known.
const CONCURRENCY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Bound on the time after which a caller may try again when a budget is spent: the owner may raise it meanwhile.
const BUDGET_RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

/// Reason why a call was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// All calls allowed at a time are in progress.
    #[error("{owner} has {most} calls in progress, the most allowed at a time ({})", owner.key("max_concurrent"))]
    Concurrent { owner: LimitOwner, most: u32 },
    #[error("{owner} has used up its {rate} calls per second ({})", owner.key("max_rate"))]
    Rate {
        owner: LimitOwner,
        rate: CallRate,
        /// Time until the next call will be admitted.
        wait: Duration,
    },
    #[error(
        "calls of priority batch are answered at {windows} only (serving.batch_windows, local time); the next window \
         opens in {} s", opens_in.as_secs()
    )]
    Window { windows: String, opens_in: Duration },
    #[error("the budget '{budget}' of this month is spent ([[budget]]); it begins anew in {} s", begins_in.as_secs())]
    Budget { budget: Arc<str>, begins_in: Duration },
}

impl AdmissionError {
    /// Time after which the call may be admitted.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Concurrent { .. } => CONCURRENCY_RETRY_AFTER,
            Self::Rate { wait, .. } => *wait,
            Self::Window { opens_in, .. } => *opens_in,
            Self::Budget { begins_in, .. } => (*begins_in).min(BUDGET_RETRY_AFTER_MAX),
        }
    }
}

/// Owner of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitOwner {
    Principal(Principal),
    Model(ModelName),
}

impl LimitOwner {
    /// Setting that holds the limit.
    fn key(&self, limit: &str) -> String {
        match self {
            Self::Principal(_) => format!("quota.{limit}_per_principal"),
            Self::Model(_) => format!("limits.{limit} of its model.toml"),
        }
    }
}

impl fmt::Display for LimitOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Principal(principal) => write!(f, "caller '{principal}'"),
            Self::Model(model) => write!(f, "model '{model}'"),
        }
    }
}

/// A call's place among those in progress; dropping it returns the place.
#[derive(Debug, Default)]
pub struct AdmissionPermit {
    _places: [Option<OwnedSemaphorePermit>; 2],
}

/// The limits of one model or one caller, and how much of them is used.
#[derive(Debug)]
pub struct AdmissionGate {
    owner: LimitOwner,
    limits: CallLimits,
    refill: Option<BucketRefill>,
    bucket: Mutex<TokenBucket>,
    places: Arc<Semaphore>,
}

impl AdmissionGate {
    /// A gate that no call has passed yet.
    pub fn new(owner: LimitOwner, limits: &CallLimits, now: Instant) -> Self {
        let rate = limits.max_rate;
        let refill = rate.interval().map(|interval| BucketRefill { interval, burst: rate.burst(limits.burst) });
        let places = Arc::new(Semaphore::new(limits.max_concurrent as usize));
        Self { owner, limits: limits.clone(), refill, bucket: Mutex::new(TokenBucket::new(now)), places }
    }

    fn pass(&self, now: Instant) -> Result<Option<OwnedSemaphorePermit>, AdmissionError> {
        let most = self.limits.max_concurrent;
        let full = |_| AdmissionError::Concurrent { owner: self.owner.clone(), most };
        let place = if most == 0 { None } else { Some(self.places.clone().try_acquire_owned().map_err(full)?) };
        if let Some(refill) = self.refill {
            let rate = self.limits.max_rate;
            let used_up = |wait| AdmissionError::Rate { owner: self.owner.clone(), rate, wait };
            self.bucket(|bucket| bucket.take(refill, now)).map_err(used_up)?;
        }
        Ok(place)
    }

    /// Returns a pass to the bucket; the place is returned with its permit.
    fn give_back(&self) {
        if let Some(refill) = self.refill {
            self.bucket(|bucket| bucket.give_back(refill));
        }
    }

    fn bucket<T>(&self, work: impl FnOnce(&mut TokenBucket) -> T) -> T {
        // Nothing panics under this lock.
        work(&mut self.bucket.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The quotas of callers.
#[derive(Debug)]
pub struct Quotas {
    limits: CallLimits,
    gates: Cache<Principal, Arc<AdmissionGate>, UnitWeighter, DefaultHashBuilder, BusyCallerLifecycle>,
}

/// Keeps callers with a call in progress from being forgotten: their count would start again.
#[derive(Debug, Clone)]
struct BusyCallerLifecycle;

impl Lifecycle<Principal, Arc<AdmissionGate>> for BusyCallerLifecycle {
    type RequestState = ();

    fn is_pinned(&self, _: &Principal, gate: &Arc<AdmissionGate>) -> bool {
        gate.places.available_permits() < gate.limits.max_concurrent as usize
    }

    fn on_evict(&self, _state: &mut (), _: Principal, _: Arc<AdmissionGate>) {}
}

impl Quotas {
    /// Quotas of each caller; `None` when nothing is limited.
    pub fn new(limits: CallLimits) -> Option<Self> {
        Self::with_capacity(limits, PRINCIPALS_MAX)
    }

    fn with_capacity(limits: CallLimits, principals: usize) -> Option<Self> {
        let mut options = OptionsBuilder::new();
        options.shards(1).estimated_items_capacity(principals).weight_capacity(principals as u64);
        let gates = Cache::with_options(
            options.build().ok()?,
            UnitWeighter,
            DefaultHashBuilder::default(),
            BusyCallerLifecycle,
        );
        limits.is_set().then_some(Self { limits, gates })
    }

    fn gate(&self, principal: &Principal, now: Instant) -> Arc<AdmissionGate> {
        let owner = || LimitOwner::Principal(principal.clone());
        let new = || Ok::<_, Infallible>(Arc::new(AdmissionGate::new(owner(), &self.limits, now)));
        match self.gates.get_or_insert_with(principal, new) {
            Ok(gate) => gate,
        }
    }
}

/// Admits background work at `second` of the local day, or returns the time until it may run.
pub fn check_window(principal: &Principal, windows: &[DailyWindow], second: u32) -> Result<(), AdmissionError> {
    match windows::closed_for(windows, second) {
        Some(opens_in) if *principal != Principal::Local => {
            Err(AdmissionError::Window { windows: windows::list(windows), opens_in })
        }
        _ => Ok(()),
    }
}

/// Admits a call, or returns the limit that is used up. The caller's own quota comes first: a caller that exceeds it
/// takes nothing from the model's.
pub fn admit(
    principal: &Principal,
    quotas: Option<&Quotas>,
    model: Option<&AdmissionGate>,
    now: Instant,
) -> Result<AdmissionPermit, AdmissionError> {
    if *principal == Principal::Local {
        return Ok(AdmissionPermit::default());
    }
    let own = quotas.map(|quotas| quotas.gate(principal, now));
    let first = own.as_ref().map(|own| own.pass(now)).transpose()?.flatten();
    let second = model.map(|model| model.pass(now)).transpose().inspect_err(|_| {
        if let Some(own) = &own {
            own.give_back();
        }
    })?;
    Ok(AdmissionPermit { _places: [first, second.flatten()] })
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn peer(number: u32) -> Principal {
        Principal::Peer(IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    fn limits(max_concurrent: u32, max_rate: f64, burst: u32) -> CallLimits {
        CallLimits { max_concurrent, max_rate: CallRate::new(max_rate).unwrap(), burst }
    }

    fn model(limits: &CallLimits, now: Instant) -> AdmissionGate {
        AdmissionGate::new(LimitOwner::Model("m".parse().unwrap()), limits, now)
    }

    #[test]
    fn one_who_exceeds_a_quota_takes_nothing_from_others_or_the_model() {
        let now = Instant::now();
        let quotas = Quotas::new(limits(0, 1.0, 2)).unwrap();
        let gate = model(&limits(0, 1.0, 4), now);
        let ask = |number| admit(&peer(number), Some(&quotas), Some(&gate), now);
        assert!(ask(1).is_ok() && ask(1).is_ok());
        let refused = ask(1).unwrap_err();
        assert_eq!(refused.retry_after(), Duration::from_secs(1));
        assert_eq!(
            refused.to_string(),
            "caller 'ip:0.0.0.1' has used up its 1 calls per second (quota.max_rate_per_principal)"
        );
        assert!(ask(2).is_ok() && ask(2).is_ok(), "the model has two left");
        let refused = ask(3).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "model 'm' has used up its 1 calls per second (limits.max_rate of its model.toml)"
        );
        // The model's refusal cost the third caller nothing.
        let later = now + Duration::from_secs(2);
        let ask = |number| admit(&peer(number), Some(&quotas), Some(&gate), later);
        assert!(ask(3).is_ok() && ask(3).is_ok() && ask(3).is_err());
    }

    #[test]
    fn a_place_is_free_again_when_its_permit_is_dropped() {
        let now = Instant::now();
        let (quotas, gate) = (Quotas::new(limits(2, 0.0, 0)).unwrap(), model(&limits(3, 0.0, 0), now));
        let ask = |number| admit(&peer(number), Some(&quotas), Some(&gate), now);
        let (first, second, _other) = (ask(1).unwrap(), ask(1).unwrap(), ask(2).unwrap());
        let full = ask(1).unwrap_err();
        assert_eq!(
            full.to_string(),
            "caller 'ip:0.0.0.1' has 2 calls in progress, the most allowed at a time (quota.max_concurrent_per_principal)"
        );
        assert_eq!(full.retry_after(), CONCURRENCY_RETRY_AFTER);
        let full = ask(2).unwrap_err();
        assert!(full.to_string().starts_with("model 'm' has 3 calls in progress"), "{full}");
        drop(first);
        let again = ask(2).unwrap();
        assert!(ask(1).is_err());
        drop((second, again));
        assert!(ask(1).is_ok());
    }

    #[test]
    fn the_daemon_itself_is_never_refused() {
        let now = Instant::now();
        let (quotas, gate) = (Quotas::new(limits(1, 0.001, 1)).unwrap(), model(&limits(1, 0.001, 1), now));
        let permits: Vec<_> = (0..5).map(|_| admit(&Principal::Local, Some(&quotas), Some(&gate), now)).collect();
        assert!(permits.iter().all(Result::is_ok));
        assert!(admit(&Principal::User(0), Some(&quotas), Some(&gate), now).is_ok());
    }

    #[test]
    fn background_work_outside_its_window_learns_when_to_come() {
        let windows = ["20:00-06:00".parse().unwrap(), "12:00-13:00".parse().unwrap()];
        let refused = check_window(&peer(1), &windows, 11 * 3600 + 1800).unwrap_err();
        assert_eq!(refused.retry_after(), Duration::from_mins(30));
        assert_eq!(
            refused.to_string(),
            "calls of priority batch are answered at 20:00-06:00, 12:00-13:00 only (serving.batch_windows, local \
             time); the next window opens in 1800 s"
        );
        assert_eq!(check_window(&peer(1), &windows, 12 * 3600), Ok(()));
        assert_eq!(check_window(&Principal::Local, &windows, 8 * 3600), Ok(()));
    }

    #[test]
    fn no_limit_is_no_quota() {
        assert!(Quotas::new(CallLimits::default()).is_none());
        assert!(Quotas::new(limits(0, 0.0, 7)).is_none());
    }

    #[test]
    fn those_with_a_call_under_way_are_remembered_and_the_table_stays_bounded() {
        let now = Instant::now();
        let quotas = Quotas::with_capacity(limits(1, 0.0, 0), 64).unwrap();
        let held: Vec<_> = (0..32).map(|number| admit(&peer(number), Some(&quotas), None, now).unwrap()).collect();
        for number in 1000..20_000 {
            assert!(admit(&peer(number), Some(&quotas), None, now).is_ok());
            assert!(quotas.gates.len() <= 64);
        }
        assert!((0..32).all(|number| admit(&peer(number), Some(&quotas), None, now).is_err()));
        drop(held);
    }

    proptest! {
        #[test]
        fn never_more_under_way_than_allowed(
            (own, all) in (1_u32..4, 1_u32..8),
            steps in prop::collection::vec((0_u32..4, any::<bool>()), 0..200),
        ) {
            let now = Instant::now();
            let (quotas, gate) = (Quotas::new(limits(own, 0.0, 0)).unwrap(), model(&limits(all, 0.0, 0), now));
            let mut under_way: Vec<(u32, AdmissionPermit)> = Vec::new();
            for (who, ends) in steps {
                let of = under_way.iter().filter(|(other, _)| *other == who).count();
                if ends {
                    if let Some(at) = under_way.iter().position(|(other, _)| *other == who) {
                        under_way.swap_remove(at);
                    }
                } else {
                    let admitted = admit(&peer(who), Some(&quotas), Some(&gate), now);
                    prop_assert_eq!(admitted.is_ok(), of < own as usize && under_way.len() < all as usize);
                    under_way.extend(admitted.ok().map(|permit| (who, permit)));
                }
            }
        }
    }
}
