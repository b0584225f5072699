"""Risk estimators that benchmarks/trust.py measures with: one caches, one counts."""

from terrella.trust.risk import RiskEstimator


class CachingRiskEstimator(RiskEstimator):
    """Caches risks as well as predictions.

    The interleaved format shows the model no history, so (observation, action) identifies a query.
    """

    def __init__(self, model, data, risk):
        super().__init__(model, data, risk)
        self.cache = {}

    def assess(self, queries):
        keys = [(query.situation.observation, query.action) for query in queries]
        new = [index for index, key in enumerate(keys) if key not in self.cache]
        assessed = super().assess([queries[index] for index in new])
        for index, result in zip(new, assessed, strict=True):
            self.cache[keys[index]] = result
        return [self.cache[key] for key in keys]

    def predict(self, queries):
        return [distribution for distribution, _ in self.assess(queries)]


class CountingRiskEstimator(RiskEstimator):
    """Counts distinct queries: what a planner needs of the model, whatever is cached."""

    def __init__(self, model, data, risk):
        super().__init__(model, data, risk)
        self.distinct = set()

    def assess(self, queries):
        self.distinct |= {(query.situation.observation, query.action) for query in queries}
        return super().assess(queries)
