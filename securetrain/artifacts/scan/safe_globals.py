# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The globals that a pickle may name and still do nothing but build a value. Data only; no torch.

A name is here when calling it with any arguments does nothing but build a value, or hands its
arguments to another global, which must then be here as well. The torch names follow the list of
torch's own weights-only unpickler (torch/_weights_only_unpickler.py). Names are matched whole: a
dotted path below an allowed name is another name.
"""

from collections.abc import Iterator
from typing import Final

from securetrain.artifacts.tree.foreign import DTYPES


def _names(table: str) -> Iterator[str]:
    """The names of a table: packages and modules with names behind them, in one line or several."""
    module = ""
    for line in table.splitlines():
        head, colon, tail = line.partition(": ")
        module = head if colon else module
        yield from (f"{module}.{name}" for name in (tail if colon else line).split())


DTYPE_NAMES: Final = frozenset(f"torch.{name}" for name in DTYPES)
"""Dtypes are pickled by name."""

VALUES: Final = frozenset(
    _names("""\
builtins: bool complex dict float frozenset int list object range set slice str tuple
collections: Counter OrderedDict defaultdict deque
copyreg: _reconstructor
datetime: date datetime time timedelta timezone
decimal: Decimal
fractions: Fraction
numpy: dtype ndarray
numpy._core: multiarray._reconstruct multiarray.scalar numeric._frombuffer
numpy.core: multiarray._reconstruct multiarray.scalar numeric._frombuffer
pathlib: PosixPath PurePosixPath _local.PosixPath _local.PurePosixPath
torch: Size Tensor _tensor._rebuild_from_type_v2 device nn.parameter.Buffer nn.parameter.Parameter
  serialization._get_layout storage.UntypedStorage
torch._utils: _rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy
  _rebuild_meta_tensor_no_storage _rebuild_nested_tensor _rebuild_parameter
  _rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor _rebuild_tensor
  _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_wrapper_subclass
traceback: FrameSummary StackSummary
types: SimpleNamespace
uuid: UUID
""")
)
"""Names that are safe wherever they come from."""

DCP_METADATA: Final = frozenset(
    _names("""\
pathlib: PosixPath _local.PosixPath
torch: Size serialization._get_layout distributed.checkpoint.filesystem._StorageInfo
torch.distributed.checkpoint.metadata: BytesStorageMetadata ChunkStorageMetadata Metadata
  MetadataIndex StorageMeta TensorProperties TensorStorageMetadata _MEM_FORMAT_ENCODING
""")
)
"""All that ``.metadata`` of torch.distributed.checkpoint needs, but for the dtypes."""

STORAGES: Final = {
    "torch.UntypedStorage": 1,
    "torch.storage.UntypedStorage": 1,
    **{
        f"torch.{name}Storage": size
        for size, names in {
            1: "Bool Byte Char QInt8 QUInt2x4 QUInt4x2 QUInt8",
            2: "BFloat16 Half Short",
            4: "Float Int QInt32",
            8: "ComplexFloat Double Long",
            16: "ComplexDouble",
        }.items()
        for name in names.split()
    },
}
"""Torch's storages, with the bytes of an element."""

STORED: Final = VALUES | DTYPE_NAMES | DCP_METADATA | frozenset(STORAGES) | {"_codecs.encode"}
"""What a pickle in a file may name: values, and torch's storages with their dtypes."""

# What pickles of ordinary models name besides. For scans alone: nothing unpickles by this list. The
# rule is that of the others: estimators of scikit-learn and modules of torch keep what they are
# given; a function that they are given is a global of its own.
_OF_MODELS: Final = """
argparse: Namespace
builtins: bytearray bytes
joblib.numpy_pickle: NumpyArrayWrapper
numpy: bool_ complex128 complex64 float16 float32 float64 int16 int32 int64 int8 str_ uint16 uint32
  uint64 uint8
numpy.ma: MaskedArray core.MaskedArray core._mareconstruct
numpy.random: _generator.Generator _mt19937.MT19937 _pcg64.PCG64 _pcg64.PCG64DXSM _philox.Philox
  _sfc64.SFC64 bit_generator.SeedSequence bit_generator.__pyx_unpickle_SeedSequence
  mtrand.RandomState
numpy.random._pickle: __bit_generator_ctor __generator_ctor __randomstate_ctor
pandas: Categorical CategoricalDtype DataFrame Index RangeIndex Series StringDtype
pandas._libs: arrays.__pyx_unpickle_NDArrayBacked internals.BlockPlacement internals._unpickle_block
pandas.arrays: DatetimeArray
pandas.core: arrays.categorical.Categorical dtypes.dtypes.CategoricalDtype
  dtypes.dtypes.DatetimeTZDtype frame.DataFrame indexes.base.Index indexes.base._new_Index
  indexes.datetimes.DatetimeIndex indexes.datetimes._new_DatetimeIndex indexes.numeric.Float64Index
  indexes.numeric.Int64Index indexes.range.RangeIndex internals.blocks.new_block
  internals.managers.BlockManager internals.managers.SingleBlockManager series.Series
scipy.interpolate: _bsplines.BSpline
scipy.sparse: _coo.coo_array _coo.coo_matrix _csc.csc_array _csc.csc_matrix _csr.csr_array
  _csr.csr_matrix coo.coo_matrix csc.csc_matrix csr.csr_matrix
sklearn._loss._loss: CyHalfBinomialLoss CyHalfGammaLoss CyHalfPoissonLoss CyHalfSquaredError
  CyHalfTweedieLossIdentity
sklearn._loss.link: IdentityLink Interval LogLink LogitLink
sklearn._loss.loss: HalfBinomialLoss HalfGammaLoss HalfPoissonLoss HalfSquaredError
  HalfTweedieLossIdentity
sklearn.calibration: CalibratedClassifierCV _CalibratedClassifier _SigmoidCalibration
sklearn.cluster: _affinity_propagation.AffinityPropagation _agglomerative.AgglomerativeClustering
  _agglomerative.FeatureAgglomeration _bicluster.SpectralBiclustering
  _bicluster.SpectralCoclustering _bisect_k_means.BisectingKMeans _bisect_k_means._BisectingTree
  _dbscan.DBSCAN _hdbscan.hdbscan.HDBSCAN _kmeans.KMeans _kmeans.MiniBatchKMeans
  _mean_shift.MeanShift _optics.OPTICS _spectral.SpectralClustering
sklearn.cluster._birch: Birch _CFNode _CFSubcluster
sklearn.compose: _column_transformer.ColumnTransformer _target.TransformedTargetRegressor
sklearn.covariance: _elliptic_envelope.EllipticEnvelope _empirical_covariance.EmpiricalCovariance
  _graph_lasso.GraphicalLasso _graph_lasso.GraphicalLassoCV _robust_covariance.MinCovDet
sklearn.covariance._shrunk_covariance: LedoitWolf OAS ShrunkCovariance
sklearn.cross_decomposition._pls: CCA PLSCanonical PLSRegression PLSSVD
sklearn.decomposition: _factor_analysis.FactorAnalysis _fastica.FastICA
  _incremental_pca.IncrementalPCA _kernel_pca.KernelPCA _lda.LatentDirichletAllocation
  _nmf.MiniBatchNMF _nmf.NMF _pca.PCA _sparse_pca.MiniBatchSparsePCA _sparse_pca.SparsePCA
  _truncated_svd.TruncatedSVD
sklearn.decomposition._dict_learning: DictionaryLearning MiniBatchDictionaryLearning SparseCoder
sklearn.discriminant_analysis: LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis
sklearn.dummy: DummyClassifier DummyRegressor
sklearn.ensemble: _bagging.BaggingClassifier _bagging.BaggingRegressor
  _gb.GradientBoostingClassifier _gb.GradientBoostingRegressor
  _hist_gradient_boosting.binning._BinMapper
  _hist_gradient_boosting.gradient_boosting.HistGradientBoostingClassifier
  _hist_gradient_boosting.gradient_boosting.HistGradientBoostingRegressor
  _hist_gradient_boosting.predictor.TreePredictor _iforest.IsolationForest
  _stacking.StackingClassifier _stacking.StackingRegressor _voting.VotingClassifier
  _voting.VotingRegressor _weight_boosting.AdaBoostClassifier _weight_boosting.AdaBoostRegressor
sklearn.ensemble._forest: ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier
  RandomForestRegressor RandomTreesEmbedding
sklearn.externals: joblib.numpy_pickle.NumpyArrayWrapper
sklearn.feature_extraction: _dict_vectorizer.DictVectorizer _hash.FeatureHasher image.PatchExtractor
sklearn.feature_extraction.text: CountVectorizer HashingVectorizer TfidfTransformer TfidfVectorizer
sklearn.feature_selection: _from_model.SelectFromModel _rfe.RFE _rfe.RFECV
  _sequential.SequentialFeatureSelector _variance_threshold.VarianceThreshold
sklearn.feature_selection._univariate_selection: GenericUnivariateSelect SelectFdr SelectFpr
  SelectFwe SelectKBest SelectPercentile
sklearn.frozen: _frozen.FrozenEstimator
sklearn.gaussian_process: _gpc.GaussianProcessClassifier
  _gpc._BinaryGaussianProcessClassifierLaplace _gpr.GaussianProcessRegressor
sklearn.gaussian_process.kernels: CompoundKernel ConstantKernel DotProduct ExpSineSquared
  Exponentiation Hyperparameter Matern PairwiseKernel Product RBF RationalQuadratic Sum WhiteKernel
sklearn.impute: _base.MissingIndicator _base.SimpleImputer _knn.KNNImputer
sklearn.isotonic: IsotonicRegression
sklearn.kernel_approximation: AdditiveChi2Sampler Nystroem PolynomialCountSketch RBFSampler
  SkewedChi2Sampler
sklearn.kernel_ridge: KernelRidge
sklearn.linear_model: _base.LinearRegression _bayes.ARDRegression _bayes.BayesianRidge
  _huber.HuberRegressor _logistic.LogisticRegression _logistic.LogisticRegressionCV
  _omp.OrthogonalMatchingPursuit _omp.OrthogonalMatchingPursuitCV
  _passive_aggressive.PassiveAggressiveClassifier _passive_aggressive.PassiveAggressiveRegressor
  _perceptron.Perceptron _quantile.QuantileRegressor _ransac.RANSACRegressor _sgd_fast.Hinge
  _theil_sen.TheilSenRegressor
sklearn.linear_model._coordinate_descent: ElasticNet ElasticNetCV Lasso LassoCV MultiTaskElasticNet
  MultiTaskElasticNetCV MultiTaskLasso MultiTaskLassoCV
sklearn.linear_model._glm.glm: GammaRegressor PoissonRegressor TweedieRegressor
sklearn.linear_model._least_angle: Lars LarsCV LassoLars LassoLarsCV LassoLarsIC
sklearn.linear_model._ridge: Ridge RidgeCV RidgeClassifier RidgeClassifierCV
sklearn.linear_model._stochastic_gradient: SGDClassifier SGDOneClassSVM SGDRegressor
sklearn.manifold: _classical_mds.ClassicalMDS _isomap.Isomap _locally_linear.LocallyLinearEmbedding
  _mds.MDS _spectral_embedding.SpectralEmbedding _t_sne.TSNE
sklearn.metrics._dist_metrics: EuclideanDistance EuclideanDistance32 EuclideanDistance64
  ManhattanDistance64 newObj
sklearn.metrics._scorer: _CurveScorer _PassthroughScorer _Scorer
sklearn.mixture: _bayesian_mixture.BayesianGaussianMixture _gaussian_mixture.GaussianMixture
sklearn.model_selection: _classification_threshold.FixedThresholdClassifier
  _classification_threshold.TunedThresholdClassifierCV _search.GridSearchCV
  _search.RandomizedSearchCV
sklearn.model_selection._split: GroupKFold GroupShuffleSplit KFold LeaveOneGroupOut LeaveOneOut
  LeavePGroupsOut LeavePOut PredefinedSplit RepeatedKFold RepeatedStratifiedKFold ShuffleSplit
  StratifiedGroupKFold StratifiedKFold StratifiedShuffleSplit TimeSeriesSplit
sklearn.multiclass: OneVsOneClassifier OneVsRestClassifier OutputCodeClassifier _ConstantPredictor
sklearn.multioutput: ClassifierChain MultiOutputClassifier MultiOutputRegressor RegressorChain
sklearn.naive_bayes: BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB
sklearn.neighbors: _ball_tree.BallTree _ball_tree.newObj _classification.KNeighborsClassifier
  _classification.RadiusNeighborsClassifier _graph.KNeighborsTransformer
  _graph.RadiusNeighborsTransformer _kd_tree.KDTree _kd_tree.newObj _kde.KernelDensity
  _lof.LocalOutlierFactor _nca.NeighborhoodComponentsAnalysis _nearest_centroid.NearestCentroid
  _regression.KNeighborsRegressor _regression.RadiusNeighborsRegressor
  _unsupervised.NearestNeighbors
sklearn.neural_network: _multilayer_perceptron.MLPClassifier _multilayer_perceptron.MLPRegressor
  _rbm.BernoulliRBM _stochastic_optimizers.AdamOptimizer
sklearn.pipeline: FeatureUnion Pipeline
sklearn.preprocessing: _discretization.KBinsDiscretizer _encoders.OneHotEncoder
  _encoders.OrdinalEncoder _function_transformer.FunctionTransformer _polynomial.PolynomialFeatures
  _polynomial.SplineTransformer _target_encoder.TargetEncoder
sklearn.preprocessing._data: Binarizer KernelCenterer MaxAbsScaler MinMaxScaler Normalizer
  PowerTransformer QuantileTransformer RobustScaler StandardScaler
sklearn.preprocessing._label: LabelBinarizer LabelEncoder MultiLabelBinarizer
sklearn.random_projection: GaussianRandomProjection SparseRandomProjection
sklearn.semi_supervised: _label_propagation.LabelPropagation _label_propagation.LabelSpreading
  _self_training.SelfTrainingClassifier
sklearn.svm._classes: LinearSVC LinearSVR NuSVC NuSVR OneClassSVM SVC SVR
sklearn.tree: _tree.Tree
sklearn.tree._classes: DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier
  ExtraTreeRegressor
sklearn.utils: _bunch.Bunch _metadata_requests.MetadataRequest
  _metadata_requests.MethodMetadataRequest
torch: Generator channels_last contiguous_format per_channel_affine per_channel_affine_float_qparams
  per_channel_symmetric per_tensor_affine per_tensor_symmetric preserve_format sparse_coo strided
torch._C._nn: gelu silu
torch.jit._pickle: build_boollist build_doublelist build_intlist build_tensor_from_id
  build_tensorlist restore_type_tag
torch.nn.functional: gelu log_softmax relu silu softmax
torch.nn.modules: adaptive.AdaptiveLogSoftmaxWithLoss channelshuffle.ChannelShuffle
  distance.CosineSimilarity distance.PairwiseDistance flatten.Flatten flatten.Unflatten fold.Fold
  fold.Unfold module.Module pixelshuffle.PixelShuffle pixelshuffle.PixelUnshuffle sparse.Embedding
  sparse.EmbeddingBag
torch.nn.modules.activation: CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU
  LogSigmoid LogSoftmax Mish MultiheadAttention PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax
  Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink Threshold
torch.nn.modules.batchnorm: BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d
  LazyBatchNorm3d SyncBatchNorm _BatchNorm _LazyNormBase _NormBase
torch.nn.modules.container: Container ModuleDict ModuleList ParameterDict ParameterList Sequential
torch.nn.modules.conv: Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
  LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d
  _ConvNd _ConvTransposeNd
torch.nn.modules.dropout: AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout
  _DropoutNd
torch.nn.modules.instancenorm: InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d
  LazyInstanceNorm2d LazyInstanceNorm3d _InstanceNorm
torch.nn.modules.linear: Bilinear Identity LazyLinear Linear NonDynamicallyQuantizableLinear
torch.nn.modules.loss: BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss
  GaussianNLLLoss HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss LinearCrossEntropyLoss MSELoss
  MarginRankingLoss MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d
  PoissonNLLLoss SmoothL1Loss SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss _Loss
  _WeightedLoss
torch.nn.modules.normalization: CrossMapLRN2d GroupNorm LayerNorm LocalResponseNorm RMSNorm
torch.nn.modules.padding: CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
  ConstantPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d
  ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d _CircularPadNd _ConstantPadNd _ReflectionPadNd
  _ReplicationPadNd
torch.nn.modules.pooling: AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d
  AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d
  FractionalMaxPool3d LPPool1d LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d
  MaxUnpool2d MaxUnpool3d _AdaptiveAvgPoolNd _AdaptiveMaxPoolNd _AvgPoolNd _LPPoolNd _MaxPoolNd
  _MaxUnpoolNd
torch.nn.modules.rnn: GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase
torch.nn.modules.transformer: Transformer TransformerDecoder TransformerDecoderLayer
  TransformerEncoder TransformerEncoderLayer
torch.nn.modules.upsampling: Upsample UpsamplingBilinear2d UpsamplingNearest2d
"""
"""Packages and modules with their names behind them; a line that is indented goes on."""


MODELS: Final = frozenset(_names(_OF_MODELS))
