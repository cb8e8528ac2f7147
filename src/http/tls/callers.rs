//! How much of this box the callers of one network take: connections, and handshakes under way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::token_bucket::{Refill, TokenBucket};
use ledge_identity::authentication::network;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many handshakes one network may have under way at once.
const HANDSHAKES_OF_ONE: usize = 32;

/// How fast handshakes of one network begin: each costs this box far more than the caller.
const PACE: Refill = Refill { interval: Duration::from_millis(50), burst: 64 };

/// So many networks without a connection are remembered for what they did of late.
const REMEMBERED: usize = 4096;

/// Those who are connected or about to be.
pub(super) struct Callers {
    networks: Mutex<HashMap<IpAddr, Network>>,
    /// How many networks are known at most.
    most_networks: usize,
    /// How many connections one network may have, unless it is this machine.
    connections_of_one: usize,
    handshakes: Arc<Semaphore>,
}

struct Network {
    connections: usize,
    handshakes: Arc<Semaphore>,
    pace: TokenBucket,
}

impl Network {
    fn new(now: Instant) -> Self {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_OF_ONE));
        Self { connections: 0, handshakes, pace: TokenBucket::new(now) }
    }

    /// Whether it is as good as new.
    fn is_forgotten(&self, now: Instant) -> bool {
        self.connections == 0 && self.pace.is_full(now)
    }
}

/// The connection of a caller, from its begin to its end.
pub(crate) struct Guest {
    callers: Arc<Callers>,
    pub(super) ip: IpAddr,
    network: IpAddr,
    handshakes: Arc<Semaphore>,
}

/// The place of one handshake.
pub(super) struct Place {
    _of_network: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Callers {
    /// Of a box that has so many connections at most.
    pub fn new(max_connections: usize) -> Self {
        Self {
            networks: Mutex::default(),
            most_networks: max_connections + REMEMBERED,
            connections_of_one: (max_connections / 4).max(1),
            // The others stay for those who are through.
            handshakes: Arc::new(Semaphore::new((max_connections / 2).max(1))),
        }
    }

    /// Lets a connection in, unless its network has its share. This machine is no network: who is on it may have them all.
    pub fn admit(self: &Arc<Self>, ip: IpAddr) -> Option<Guest> {
        let of = network(ip);
        let (mut networks, now) = (self.networks(), Instant::now());
        if networks.len() >= self.most_networks {
            networks.retain(|known, network| *known == of || !network.is_forgotten(now));
            if networks.len() >= self.most_networks && !networks.contains_key(&of) {
                return None;
            }
        }
        let network = networks.entry(of).or_insert_with(|| Network::new(now));
        if network.connections >= self.connections_of_one && !of.is_loopback() {
            return None;
        }
        network.connections += 1;
        Some(Guest { callers: self.clone(), ip, network: of, handshakes: network.handshakes.clone() })
    }

    fn networks(&self) -> MutexGuard<'_, HashMap<IpAddr, Network>> {
        // Nothing panics under this lock.
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest {
    /// Waits for a place for its handshake, and for its turn; `None` would be the end of semaphores that have none.
    pub(super) async fn place(&self) -> Option<Place> {
        // First of its network: a network that waits for itself keeps no place from others.
        let of_network = self.handshakes.clone().acquire_owned().await.ok()?;
        while let Err(wait) = self.take_turn(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        let of_all = self.callers.handshakes.clone().acquire_owned().await.ok()?;
        Some(Place { _of_network: of_network, _of_all: of_all })
    }

    /// Begins a handshake, or says after what time it may. Those on this machine pay for theirs themselves.
    fn take_turn(&self, now: Instant) -> Result<(), Duration> {
        match self.callers.networks().get_mut(&self.network) {
            Some(network) if !self.network.is_loopback() => network.pace.take(PACE, now),
            _ => Ok(()),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut networks = self.callers.networks();
        if let Some(network) = networks.get_mut(&self.network) {
            network.connections -= 1;
            if network.is_forgotten(Instant::now()) {
                networks.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn admit(callers: &Arc<Callers>, text: &str) -> Option<Guest> {
        callers.admit(text.parse().unwrap())
    }

    #[test]
    fn a_network_has_a_quarter_of_the_connections_and_this_machine_has_all() {
        let callers = Arc::new(Callers::new(16));
        let mut of_one: Vec<_> = (0..4).map(|last| admit(&callers, &format!("2001:db8::{last}")).unwrap()).collect();
        assert!(admit(&callers, "2001:db8::ffff:0:0:1").is_none(), "one network");
        let other = admit(&callers, "2001:db8:0:1::1").unwrap();
        of_one.pop();
        of_one.push(admit(&callers, "2001:db8::5").unwrap());
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let _all: Vec<_> = (0..16).map(|_| admit(&callers, local).unwrap()).collect();
        }
        let few = Arc::new(Callers::new(1));
        let single = admit(&few, "192.0.2.1").unwrap();
        assert!(admit(&few, "192.0.2.1").is_none());
        drop((of_one, other, single));
        assert!(callers.networks().is_empty() && few.networks().is_empty());
    }

    #[tokio::test]
    async fn a_handshake_waits_for_one_of_its_network_and_for_half_of_the_connections() {
        let callers = Arc::new(Callers::new(2 * (HANDSHAKES_OF_ONE + 1)));
        // On this machine: elsewhere the share of connections would come first.
        let same: Vec<_> = (0..=HANDSHAKES_OF_ONE).map(|_| admit(&callers, "127.0.0.1").unwrap()).collect();
        let mut places = Vec::new();
        for guest in &same[1..] {
            places.push(guest.place().now_or_never().unwrap().unwrap());
        }
        assert!(same[0].place().now_or_never().is_none(), "one network");
        let (second, third) = (admit(&callers, "192.0.2.1").unwrap(), admit(&callers, "192.0.2.2").unwrap());
        let other = second.place().now_or_never().unwrap().unwrap();
        let mut waiting = Box::pin(third.place());
        assert!(waiting.as_mut().now_or_never().is_none(), "half of the connections");
        drop(other);
        assert!(waiting.await.is_some(), "who waits comes next");
    }

    #[test]
    fn a_network_begins_so_many_handshakes_a_second_and_is_remembered_for_them() {
        let callers = Arc::new(Callers::new(1));
        let guest = admit(&callers, "192.0.2.1").unwrap();
        let now = Instant::now();
        assert!((0..64).all(|_| guest.take_turn(now).is_ok()));
        assert_eq!(guest.take_turn(now), Err(PACE.interval));
        assert!((1..=20).all(|turn| guest.take_turn(now + turn * PACE.interval).is_ok()));
        let local = admit(&callers, "127.0.0.1").unwrap();
        assert!((0..1000).all(|_| local.take_turn(now).is_ok()), "those on this machine pay for theirs themselves");
        drop((guest, local));
        assert_eq!(callers.networks().len(), 1, "who did much is remembered without a connection");
        // Later than this test will be.
        let later = now + Duration::from_hours(1);
        let addresses = (0..).map(|number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(0xc612_0000 + number)));
        let guests = addresses.map_while(|ip| callers.admit(ip));
        let let_in = guests.filter(|guest| guest.take_turn(later).is_ok()).count();
        assert_eq!(let_in, REMEMBERED, "and so many at most");
        assert!(admit(&callers, "192.0.2.1").is_some());
    }
}
