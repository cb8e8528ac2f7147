//! Limits on the callers of one network: connections, and handshakes in progress.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::token_bucket::{BucketRefill, TokenBucket};
use ledge_identity::authentication::network;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most handshakes of one network in progress at once.
const NETWORK_HANDSHAKES_MAX: usize = 32;

/// The rate at which handshakes of one network begin: each costs this box far more than the caller.
const HANDSHAKE_RATE: BucketRefill = BucketRefill { interval: Duration::from_millis(50), burst: 64 };

/// The most networks without a connection of which recent handshakes are remembered.
const IDLE_NETWORKS_MAX: usize = 4096;

/// The networks with connections or recent handshakes, and their limits.
pub(super) struct NetworkLimiter {
    networks: Mutex<HashMap<IpAddr, NetworkUsage>>,
    networks_max: usize,
    /// The most connections of one network; loopback has no limit.
    network_connections_max: usize,
    handshakes: Arc<Semaphore>,
}

struct NetworkUsage {
    connections: usize,
    handshakes: Arc<Semaphore>,
    rate: TokenBucket,
}

impl NetworkUsage {
    fn new(now: Instant) -> Self {
        let handshakes = Arc::new(Semaphore::new(NETWORK_HANDSHAKES_MAX));
        Self { connections: 0, handshakes, rate: TokenBucket::new(now) }
    }

    /// Returns `true` if the state equals that of a new network, so that it can be dropped.
    fn is_unused(&self, now: Instant) -> bool {
        self.connections == 0 && self.rate.is_full(now)
    }
}

/// The connection of a caller, counted until it is dropped.
pub(crate) struct AdmittedConnection {
    limiter: Arc<NetworkLimiter>,
    pub(super) ip: IpAddr,
    network: IpAddr,
    handshakes: Arc<Semaphore>,
}

/// The permit of one handshake.
pub(super) struct HandshakePermit {
    _of_network: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl NetworkLimiter {
    pub fn new(max_connections: usize) -> Self {
        Self {
            networks: Mutex::default(),
            networks_max: max_connections + IDLE_NETWORKS_MAX,
            network_connections_max: (max_connections / 4).max(1),
            // The other half of the connections is for callers after their handshake.
            handshakes: Arc::new(Semaphore::new((max_connections / 2).max(1))),
        }
    }

    /// Admits a connection, unless its network has too many. Callers on this machine may have all connections.
    pub fn admit(self: &Arc<Self>, ip: IpAddr) -> Option<AdmittedConnection> {
        let of = network(ip);
        let (mut networks, now) = (self.networks(), Instant::now());
        if networks.len() >= self.networks_max {
            networks.retain(|known, network| *known == of || !network.is_unused(now));
            if networks.len() >= self.networks_max && !networks.contains_key(&of) {
                return None;
            }
        }
        let network = networks.entry(of).or_insert_with(|| NetworkUsage::new(now));
        if network.connections >= self.network_connections_max && !of.is_loopback() {
            return None;
        }
        network.connections += 1;
        Some(AdmittedConnection { limiter: self.clone(), ip, network: of, handshakes: network.handshakes.clone() })
    }

    fn networks(&self) -> MutexGuard<'_, HashMap<IpAddr, NetworkUsage>> {
        // Nothing panics under this lock.
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmittedConnection {
    /// Waits for a permit for the handshake, in order. Never `None`, because the semaphores are never closed.
    pub(super) async fn handshake_permit(&self) -> Option<HandshakePermit> {
        // The permit of the network comes first: handshakes that wait for their own network take no permit from others.
        let of_network = self.handshakes.clone().acquire_owned().await.ok()?;
        while let Err(wait) = self.take_turn(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        let of_all = self.limiter.handshakes.clone().acquire_owned().await.ok()?;
        Some(HandshakePermit { _of_network: of_network, _of_all: of_all })
    }

    /// Begins a handshake, or returns the time to wait. Callers on this machine are not limited: they share its CPU.
    fn take_turn(&self, now: Instant) -> Result<(), Duration> {
        match self.limiter.networks().get_mut(&self.network) {
            Some(network) if !self.network.is_loopback() => network.rate.take(HANDSHAKE_RATE, now),
            _ => Ok(()),
        }
    }
}

impl Drop for AdmittedConnection {
    fn drop(&mut self) {
        let mut networks = self.limiter.networks();
        if let Some(network) = networks.get_mut(&self.network) {
            network.connections -= 1;
            if network.is_unused(Instant::now()) {
                networks.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn admit(limiter: &Arc<NetworkLimiter>, text: &str) -> Option<AdmittedConnection> {
        limiter.admit(text.parse().unwrap())
    }

    #[test]
    fn a_network_has_a_quarter_of_the_connections_and_this_machine_has_all() {
        let limiter = Arc::new(NetworkLimiter::new(16));
        let mut of_one: Vec<_> = (0..4).map(|last| admit(&limiter, &format!("2001:db8::{last}")).unwrap()).collect();
        assert!(admit(&limiter, "2001:db8::ffff:0:0:1").is_none(), "one network");
        let other = admit(&limiter, "2001:db8:0:1::1").unwrap();
        of_one.pop();
        of_one.push(admit(&limiter, "2001:db8::5").unwrap());
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let _all: Vec<_> = (0..16).map(|_| admit(&limiter, local).unwrap()).collect();
        }
        let few = Arc::new(NetworkLimiter::new(1));
        let single = admit(&few, "192.0.2.1").unwrap();
        assert!(admit(&few, "192.0.2.1").is_none());
        drop((of_one, other, single));
        assert!(limiter.networks().is_empty() && few.networks().is_empty());
    }

    #[tokio::test]
    async fn a_handshake_waits_for_one_of_its_network_and_for_half_of_the_connections() {
        let limiter = Arc::new(NetworkLimiter::new(2 * (NETWORK_HANDSHAKES_MAX + 1)));
        // On this machine: elsewhere the share of connections would come first.
        let same: Vec<_> = (0..=NETWORK_HANDSHAKES_MAX).map(|_| admit(&limiter, "127.0.0.1").unwrap()).collect();
        let mut permits = Vec::new();
        for connection in &same[1..] {
            permits.push(connection.handshake_permit().now_or_never().unwrap().unwrap());
        }
        assert!(same[0].handshake_permit().now_or_never().is_none(), "one network");
        let (second, third) = (admit(&limiter, "192.0.2.1").unwrap(), admit(&limiter, "192.0.2.2").unwrap());
        let other = second.handshake_permit().now_or_never().unwrap().unwrap();
        let mut waiting = Box::pin(third.handshake_permit());
        assert!(waiting.as_mut().now_or_never().is_none(), "half of the connections");
        drop(other);
        assert!(waiting.await.is_some(), "the waiting one comes next");
    }

    #[test]
    fn a_network_begins_so_many_handshakes_a_second_and_is_remembered_for_them() {
        let limiter = Arc::new(NetworkLimiter::new(1));
        let connection = admit(&limiter, "192.0.2.1").unwrap();
        let now = Instant::now();
        assert!((0..64).all(|_| connection.take_turn(now).is_ok()));
        assert_eq!(connection.take_turn(now), Err(HANDSHAKE_RATE.interval));
        assert!((1..=20).all(|turn| connection.take_turn(now + turn * HANDSHAKE_RATE.interval).is_ok()));
        let local = admit(&limiter, "127.0.0.1").unwrap();
        assert!((0..1000).all(|_| local.take_turn(now).is_ok()), "callers on this machine are not limited");
        drop((connection, local));
        assert_eq!(limiter.networks().len(), 1, "a network with recent handshakes is remembered without a connection");
        // Later than this test will be.
        let later = now + Duration::from_hours(1);
        let addresses = (0..).map(|number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(0xc612_0000 + number)));
        let connections = addresses.map_while(|ip| limiter.admit(ip));
        let let_in = connections.filter(|connection| connection.take_turn(later).is_ok()).count();
        assert_eq!(let_in, IDLE_NETWORKS_MAX, "and no more than the limit");
        assert!(admit(&limiter, "192.0.2.1").is_some());
    }
}
