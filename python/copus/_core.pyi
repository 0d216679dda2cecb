from typing import Any

__version__: str

class UserError(ValueError):
    """A mistake in what was given: the message says what, where, what was expected and what to do."""

def check_settings(settings: dict[str, Any]) -> None:
    """Raises UserError for settings that Adviser would refuse."""

class Adviser:
    """Advises a job that another program trains (copus/adviser/adviser.h). Settings are listed in docs/adviser.md."""

    def __init__(
        self,
        settings: dict[str, Any],
        directory: str | None = None,
        after_step: int | None = None,
        state: str | None = None,
    ) -> None: ...
    def step(
        self,
        samples: int,
        seconds: float,
        grad_norm: float,
        small_batch: float | None = None,
        small_squared_norm: float | None = None,
        lr: float | None = None,
        loss: float | None = None,
        loss_tokens: int | None = None,
    ) -> dict[str, Any] | None:
        """Tells of a finished step. Returns advice where a decision wants another batch."""

    def noise(self) -> dict[str, float | None] | None:
        """The noise scale: value, low and high, in samples."""

    def forget_noise(self) -> None:
        """Begins the averages of the noise scale anew."""

    def log_unmeasured(self, reason: str) -> None:
        """Logs that the steps from here on cannot be measured."""

    def expected_step_seconds(self, samples: int) -> tuple[float, float] | None:
        """Expected seconds of a step, and one standard deviation of their logarithm."""

    def state(self) -> str:
        """A text to go on from after this step, once the disk has the logs so far."""

    def close(self) -> None:
        """Closes the logs, after which there is no further step."""

    @property
    def steps(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def consumed_samples(self) -> int: ...
    @property
    def notes(self) -> list[str]:
        """Lines for the user since they were last looked at."""

def fit_calibration(
    outcomes: list[dict[str, float]],
    reference_batch: float,
    noise_scale: float,
    consumed_samples: float,
    updates: float = 0.0,
    alpha: float = 0.0,
) -> dict[str, Any] | None:
    """Fits the calibration c in B_c = c phi to the ends of short branches."""

def best_rate_exponent(outcomes: list[dict[str, float]], reference_batch: float) -> dict[str, float] | None:
    """Finds the exponent of the learning rate's factor whose branches were most efficient."""

def observe_dual_noise(
    average: dict[str, float], noise: float, signal: float, batch: float, mean_variance: float
) -> dict[str, float]:
    """Returns the average with one more observation (copus/statistics/dual_noise.h); {} is an average of none."""

def dual_noise_scale(average: dict[str, float]) -> tuple[float | None, float, float | None] | None:
    """The noise scale in samples and its 95 % interval: value, low and high."""

def polar_express_polynomials(steps: int) -> list[tuple[float, float, float]]:
    """The maps x -> a x + b x^3 + c x^5 of singular values that bring them to 1."""
