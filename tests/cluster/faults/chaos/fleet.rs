//! Replicas that are killed and started again, with whatever goes wrong around them.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::super::super::control_plane::ControlPlane;
use super::super::super::nodegate::{Nodegate, Setup};
use super::super::super::random::Random;
use super::super::super::rolling::Balancer;
use super::super::clock::Clock;

/// The replica that reaches the API server through the proxy.
const BEHIND_PROXY: usize = 1;
/// How many replicas there are beside the first one.
pub(super) const COUNT: usize = 2;

/// How a replica is started.
#[derive(Clone, Copy, Debug)]
pub(super) enum How<'a> {
    /// As usual.
    Usual,
    /// With a clock that is so many hours ahead.
    Clock(i64),
    /// With its log on a disk that is full.
    FullDisk,
    /// As the program of another version.
    Program(&'a str),
}

struct Running {
    nodegate: Nodegate<'static>,
    _clock: Option<Clock>,
}

/// The replicas that are broken.
pub(super) struct Fleet<'a> {
    plane: &'static ControlPlane,
    setup: Setup<'a>,
    proxy: &'a str,
    balancer: &'a Balancer,
    running: Vec<Running>,
    /// Reviews that replicas had answered when they were killed.
    served: u64,
}

impl<'a> Fleet<'a> {
    /// Starts them as `setup` says, one of them behind the proxy.
    pub(super) fn start(
        plane: &'static ControlPlane,
        setup: Setup<'a>,
        proxy: &'a str,
        balancer: &'a Balancer,
    ) -> Self {
        let mut fleet = Self { plane, setup, proxy, balancer, running: Vec::new(), served: 0 };
        for at in 0..COUNT {
            let started = fleet.started(at, How::Usual);
            balancer.add(&started.nodegate);
            fleet.running.push(started);
        }
        fleet
    }

    /// How many reviews of `/mutate` were answered, also by replicas that are gone, except for those with a limit of memory.
    pub(super) fn served(&self) -> u64 {
        self.served + self.running.iter().map(|running| running.nodegate.requests("mutate")).sum::<u64>()
    }

    pub(super) fn replica(&self, at: usize) -> &Nodegate<'static> {
        &self.running[at].nodegate
    }

    fn setup(&self, at: usize) -> Setup<'a> {
        Setup { api_server: (at == BEHIND_PROXY).then_some(self.proxy), ..self.setup.clone() }
    }

    fn started(&self, at: usize, how: How<'_>) -> Running {
        let clock = if let How::Clock(hours) = how {
            let clock = Clock::if_possible();
            clock.iter().for_each(|clock| clock.jump(hours));
            clock
        } else {
            None
        };
        let environment = clock.as_ref().map(Clock::environment).into_iter().flatten().collect::<Vec<_>>();
        let setup = Setup {
            environment: &environment,
            log_to: matches!(how, How::FullDisk).then_some("/dev/full"),
            program: if let How::Program(program) = how { Some(program) } else { None },
            ..self.setup(at)
        };
        let nodegate = Nodegate::start(self.plane, &setup);
        Running { nodegate, _clock: clock }
    }

    /// Kills a replica, which must not have ended by itself, and starts another one in its place.
    pub(super) fn replace(&mut self, at: usize, how: How<'_>) {
        self.end(at);
        let started = self.started(at, how);
        self.balancer.add(&started.nodegate);
        self.running[at] = started;
    }

    fn end(&mut self, at: usize) {
        let nodegate = &mut self.running[at].nodegate;
        assert!(!nodegate.has_ended(), "a replica ended by itself:\n{}", nodegate.log());
        self.served += nodegate.requests("mutate");
        nodegate.kill();
        self.balancer.remove(nodegate);
    }

    /// None of them may have ended by itself.
    pub(super) fn assert_alive(&mut self) {
        for running in &mut self.running {
            assert!(!running.nodegate.has_ended(), "a replica ended by itself:\n{}", running.nodegate.log());
        }
    }

    /// Replaces a replica by one that may have little memory, until that ends it or for some seconds, and then by a usual one.
    /// Whether the limit ended it.
    pub(super) fn starve(&mut self, at: usize, dice: &mut Random) -> bool {
        let usual = self.running[at].nodegate.resident_memory();
        // At the lower end it does not even start; at the upper end it works and cannot grow.
        let limit = format!("--data={}", usual / 100 * (20 + dice.below(60)) as u64);
        self.end(at);
        let starter = ["prlimit", limit.as_str(), "--core=0", "--"];
        let mut starved = Nodegate::spawn(self.plane, &Setup { starter: &starter, ..self.setup(at) });
        self.balancer.add(&starved);
        let (until, mut connections) = (Instant::now() + Duration::from_secs(3), Vec::new());
        while !starved.has_ended() && Instant::now() < until {
            connections.extend((0..20).filter_map(|_| TcpStream::connect(("127.0.0.1", starved.ports().0)).ok()));
            std::thread::sleep(Duration::from_millis(50));
        }
        let ended = starved.has_ended();
        starved.kill();
        self.balancer.remove(&starved);
        let started = self.started(at, How::Usual);
        self.balancer.add(&started.nodegate);
        self.running[at] = started;
        ended
    }
}
