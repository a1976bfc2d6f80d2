# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The globals that pickles of ordinary models name besides `safe_globals`. Data only.

For scans alone: nothing unpickles by this list. The rule is that of `safe_globals`: what is named
builds a value, or hands its arguments to another global. Estimators of scikit-learn and modules of
torch keep what they are given; a function that they are given is a global of its own.
"""

from collections.abc import Iterator
from typing import Final

_NAMES: Final = """
argparse: Namespace
builtins: bytearray bytes
joblib.numpy_pickle: NumpyArrayWrapper
numpy: bool_ complex128 complex64 float16 float32 float64 int16 int32 int64 int8 str_ uint16
  uint32 uint64 uint8
numpy.ma: MaskedArray
numpy.ma.core: MaskedArray _mareconstruct
numpy.random._generator: Generator
numpy.random._mt19937: MT19937
numpy.random._pcg64: PCG64 PCG64DXSM
numpy.random._philox: Philox
numpy.random._pickle: __bit_generator_ctor __generator_ctor __randomstate_ctor
numpy.random._sfc64: SFC64
numpy.random.bit_generator: SeedSequence __pyx_unpickle_SeedSequence
numpy.random.mtrand: RandomState
pandas: Categorical CategoricalDtype DataFrame Index RangeIndex Series StringDtype
pandas._libs.arrays: __pyx_unpickle_NDArrayBacked
pandas._libs.internals: BlockPlacement _unpickle_block
pandas.arrays: DatetimeArray
pandas.core.arrays.categorical: Categorical
pandas.core.dtypes.dtypes: CategoricalDtype DatetimeTZDtype
pandas.core.frame: DataFrame
pandas.core.indexes.base: Index _new_Index
pandas.core.indexes.datetimes: DatetimeIndex _new_DatetimeIndex
pandas.core.indexes.numeric: Float64Index Int64Index
pandas.core.indexes.range: RangeIndex
pandas.core.internals.blocks: new_block
pandas.core.internals.managers: BlockManager SingleBlockManager
pandas.core.series: Series
scipy.interpolate._bsplines: BSpline
scipy.sparse._coo: coo_array coo_matrix
scipy.sparse._csc: csc_array csc_matrix
scipy.sparse._csr: csr_array csr_matrix
scipy.sparse.coo: coo_matrix
scipy.sparse.csc: csc_matrix
scipy.sparse.csr: csr_matrix
sklearn._loss._loss: CyHalfBinomialLoss CyHalfGammaLoss CyHalfPoissonLoss CyHalfSquaredError
  CyHalfTweedieLossIdentity
sklearn._loss.link: IdentityLink Interval LogLink LogitLink
sklearn._loss.loss: HalfBinomialLoss HalfGammaLoss HalfPoissonLoss HalfSquaredError
  HalfTweedieLossIdentity
sklearn.calibration: CalibratedClassifierCV _CalibratedClassifier _SigmoidCalibration
sklearn.cluster._affinity_propagation: AffinityPropagation
sklearn.cluster._agglomerative: AgglomerativeClustering FeatureAgglomeration
sklearn.cluster._bicluster: SpectralBiclustering SpectralCoclustering
sklearn.cluster._birch: Birch _CFNode _CFSubcluster
sklearn.cluster._bisect_k_means: BisectingKMeans _BisectingTree
sklearn.cluster._dbscan: DBSCAN
sklearn.cluster._hdbscan.hdbscan: HDBSCAN
sklearn.cluster._kmeans: KMeans MiniBatchKMeans
sklearn.cluster._mean_shift: MeanShift
sklearn.cluster._optics: OPTICS
sklearn.cluster._spectral: SpectralClustering
sklearn.compose._column_transformer: ColumnTransformer
sklearn.compose._target: TransformedTargetRegressor
sklearn.covariance._elliptic_envelope: EllipticEnvelope
sklearn.covariance._empirical_covariance: EmpiricalCovariance
sklearn.covariance._graph_lasso: GraphicalLasso GraphicalLassoCV
sklearn.covariance._robust_covariance: MinCovDet
sklearn.covariance._shrunk_covariance: LedoitWolf OAS ShrunkCovariance
sklearn.cross_decomposition._pls: CCA PLSCanonical PLSRegression PLSSVD
sklearn.decomposition._dict_learning: DictionaryLearning MiniBatchDictionaryLearning SparseCoder
sklearn.decomposition._factor_analysis: FactorAnalysis
sklearn.decomposition._fastica: FastICA
sklearn.decomposition._incremental_pca: IncrementalPCA
sklearn.decomposition._kernel_pca: KernelPCA
sklearn.decomposition._lda: LatentDirichletAllocation
sklearn.decomposition._nmf: MiniBatchNMF NMF
sklearn.decomposition._pca: PCA
sklearn.decomposition._sparse_pca: MiniBatchSparsePCA SparsePCA
sklearn.decomposition._truncated_svd: TruncatedSVD
sklearn.discriminant_analysis: LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis
sklearn.dummy: DummyClassifier DummyRegressor
sklearn.ensemble._bagging: BaggingClassifier BaggingRegressor
sklearn.ensemble._forest: ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier
  RandomForestRegressor RandomTreesEmbedding
sklearn.ensemble._gb: GradientBoostingClassifier GradientBoostingRegressor
sklearn.ensemble._hist_gradient_boosting.binning: _BinMapper
sklearn.ensemble._hist_gradient_boosting.gradient_boosting: HistGradientBoostingClassifier
  HistGradientBoostingRegressor
sklearn.ensemble._hist_gradient_boosting.predictor: TreePredictor
sklearn.ensemble._iforest: IsolationForest
sklearn.ensemble._stacking: StackingClassifier StackingRegressor
sklearn.ensemble._voting: VotingClassifier VotingRegressor
sklearn.ensemble._weight_boosting: AdaBoostClassifier AdaBoostRegressor
sklearn.externals.joblib.numpy_pickle: NumpyArrayWrapper
sklearn.feature_extraction._dict_vectorizer: DictVectorizer
sklearn.feature_extraction._hash: FeatureHasher
sklearn.feature_extraction.image: PatchExtractor
sklearn.feature_extraction.text: CountVectorizer HashingVectorizer TfidfTransformer
  TfidfVectorizer
sklearn.feature_selection._from_model: SelectFromModel
sklearn.feature_selection._rfe: RFE RFECV
sklearn.feature_selection._sequential: SequentialFeatureSelector
sklearn.feature_selection._univariate_selection: GenericUnivariateSelect SelectFdr SelectFpr
  SelectFwe SelectKBest SelectPercentile
sklearn.feature_selection._variance_threshold: VarianceThreshold
sklearn.frozen._frozen: FrozenEstimator
sklearn.gaussian_process._gpc: GaussianProcessClassifier _BinaryGaussianProcessClassifierLaplace
sklearn.gaussian_process._gpr: GaussianProcessRegressor
sklearn.gaussian_process.kernels: CompoundKernel ConstantKernel DotProduct ExpSineSquared
  Exponentiation Hyperparameter Matern PairwiseKernel Product RBF RationalQuadratic Sum WhiteKernel
sklearn.impute._base: MissingIndicator SimpleImputer
sklearn.impute._knn: KNNImputer
sklearn.isotonic: IsotonicRegression
sklearn.kernel_approximation: AdditiveChi2Sampler Nystroem PolynomialCountSketch RBFSampler
  SkewedChi2Sampler
sklearn.kernel_ridge: KernelRidge
sklearn.linear_model._base: LinearRegression
sklearn.linear_model._bayes: ARDRegression BayesianRidge
sklearn.linear_model._coordinate_descent: ElasticNet ElasticNetCV Lasso LassoCV
  MultiTaskElasticNet MultiTaskElasticNetCV MultiTaskLasso MultiTaskLassoCV
sklearn.linear_model._glm.glm: GammaRegressor PoissonRegressor TweedieRegressor
sklearn.linear_model._huber: HuberRegressor
sklearn.linear_model._least_angle: Lars LarsCV LassoLars LassoLarsCV LassoLarsIC
sklearn.linear_model._logistic: LogisticRegression LogisticRegressionCV
sklearn.linear_model._omp: OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV
sklearn.linear_model._passive_aggressive: PassiveAggressiveClassifier PassiveAggressiveRegressor
sklearn.linear_model._perceptron: Perceptron
sklearn.linear_model._quantile: QuantileRegressor
sklearn.linear_model._ransac: RANSACRegressor
sklearn.linear_model._ridge: Ridge RidgeCV RidgeClassifier RidgeClassifierCV
sklearn.linear_model._sgd_fast: Hinge
sklearn.linear_model._stochastic_gradient: SGDClassifier SGDOneClassSVM SGDRegressor
sklearn.linear_model._theil_sen: TheilSenRegressor
sklearn.manifold._classical_mds: ClassicalMDS
sklearn.manifold._isomap: Isomap
sklearn.manifold._locally_linear: LocallyLinearEmbedding
sklearn.manifold._mds: MDS
sklearn.manifold._spectral_embedding: SpectralEmbedding
sklearn.manifold._t_sne: TSNE
sklearn.metrics._dist_metrics: EuclideanDistance EuclideanDistance32 EuclideanDistance64
  ManhattanDistance64 newObj
sklearn.metrics._scorer: _CurveScorer _PassthroughScorer _Scorer
sklearn.mixture._bayesian_mixture: BayesianGaussianMixture
sklearn.mixture._gaussian_mixture: GaussianMixture
sklearn.model_selection._classification_threshold: FixedThresholdClassifier
  TunedThresholdClassifierCV
sklearn.model_selection._split: GroupKFold GroupShuffleSplit KFold LeaveOneGroupOut LeaveOneOut
  LeavePGroupsOut LeavePOut PredefinedSplit RepeatedKFold RepeatedStratifiedKFold ShuffleSplit
  StratifiedGroupKFold StratifiedKFold StratifiedShuffleSplit TimeSeriesSplit
sklearn.model_selection._search: GridSearchCV RandomizedSearchCV
sklearn.model_selection._split: StratifiedKFold
sklearn.multiclass: OneVsOneClassifier OneVsRestClassifier OutputCodeClassifier _ConstantPredictor
sklearn.multioutput: ClassifierChain MultiOutputClassifier MultiOutputRegressor RegressorChain
sklearn.naive_bayes: BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB
sklearn.neighbors._ball_tree: BallTree newObj
sklearn.neighbors._classification: KNeighborsClassifier RadiusNeighborsClassifier
sklearn.neighbors._graph: KNeighborsTransformer RadiusNeighborsTransformer
sklearn.neighbors._kd_tree: KDTree newObj
sklearn.neighbors._kde: KernelDensity
sklearn.neighbors._lof: LocalOutlierFactor
sklearn.neighbors._nca: NeighborhoodComponentsAnalysis
sklearn.neighbors._nearest_centroid: NearestCentroid
sklearn.neighbors._regression: KNeighborsRegressor RadiusNeighborsRegressor
sklearn.neighbors._unsupervised: NearestNeighbors
sklearn.neural_network._multilayer_perceptron: MLPClassifier MLPRegressor
sklearn.neural_network._rbm: BernoulliRBM
sklearn.neural_network._stochastic_optimizers: AdamOptimizer
sklearn.pipeline: FeatureUnion Pipeline
sklearn.preprocessing._data: Binarizer KernelCenterer MaxAbsScaler MinMaxScaler Normalizer
  PowerTransformer QuantileTransformer RobustScaler StandardScaler
sklearn.preprocessing._discretization: KBinsDiscretizer
sklearn.preprocessing._encoders: OneHotEncoder OrdinalEncoder
sklearn.preprocessing._function_transformer: FunctionTransformer
sklearn.preprocessing._label: LabelBinarizer LabelEncoder MultiLabelBinarizer
sklearn.preprocessing._polynomial: PolynomialFeatures SplineTransformer
sklearn.preprocessing._target_encoder: TargetEncoder
sklearn.random_projection: GaussianRandomProjection SparseRandomProjection
sklearn.semi_supervised._label_propagation: LabelPropagation LabelSpreading
sklearn.semi_supervised._self_training: SelfTrainingClassifier
sklearn.svm._classes: LinearSVC LinearSVR NuSVC NuSVR OneClassSVM SVC SVR
sklearn.tree._classes: DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier
  ExtraTreeRegressor
sklearn.tree._tree: Tree
sklearn.utils._bunch: Bunch
sklearn.utils._metadata_requests: MetadataRequest MethodMetadataRequest
torch: Generator channels_last contiguous_format per_channel_affine
  per_channel_affine_float_qparams per_channel_symmetric per_tensor_affine per_tensor_symmetric
  preserve_format sparse_coo strided
torch._C._nn: gelu silu
torch.jit._pickle: build_boollist build_doublelist build_intlist build_tensor_from_id
  build_tensorlist restore_type_tag
torch.nn.functional: gelu log_softmax relu silu softmax
torch.nn.modules.activation: CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU
  LogSigmoid LogSoftmax Mish MultiheadAttention PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax
  Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink Threshold
torch.nn.modules.adaptive: AdaptiveLogSoftmaxWithLoss
torch.nn.modules.batchnorm: BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d
  LazyBatchNorm3d SyncBatchNorm _BatchNorm _LazyNormBase _NormBase
torch.nn.modules.channelshuffle: ChannelShuffle
torch.nn.modules.container: Container ModuleDict ModuleList ParameterDict ParameterList Sequential
torch.nn.modules.conv: Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
  LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d
  _ConvNd _ConvTransposeNd
torch.nn.modules.distance: CosineSimilarity PairwiseDistance
torch.nn.modules.dropout: AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout
  _DropoutNd
torch.nn.modules.flatten: Flatten Unflatten
torch.nn.modules.fold: Fold Unfold
torch.nn.modules.instancenorm: InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d
  LazyInstanceNorm2d LazyInstanceNorm3d _InstanceNorm
torch.nn.modules.linear: Bilinear Identity LazyLinear Linear NonDynamicallyQuantizableLinear
torch.nn.modules.loss: BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss
  GaussianNLLLoss HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss LinearCrossEntropyLoss MSELoss
  MarginRankingLoss MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss
  NLLLoss2d PoissonNLLLoss SmoothL1Loss SoftMarginLoss TripletMarginLoss
  TripletMarginWithDistanceLoss _Loss _WeightedLoss
torch.nn.modules.module: Module
torch.nn.modules.normalization: CrossMapLRN2d GroupNorm LayerNorm LocalResponseNorm RMSNorm
torch.nn.modules.padding: CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
  ConstantPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d
  ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d _CircularPadNd _ConstantPadNd _ReflectionPadNd
  _ReplicationPadNd
torch.nn.modules.pixelshuffle: PixelShuffle PixelUnshuffle
torch.nn.modules.pooling: AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d
  AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d
  FractionalMaxPool3d LPPool1d LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d
  MaxUnpool2d MaxUnpool3d _AdaptiveAvgPoolNd _AdaptiveMaxPoolNd _AvgPoolNd _LPPoolNd _MaxPoolNd
  _MaxUnpoolNd
torch.nn.modules.rnn: GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase
torch.nn.modules.sparse: Embedding EmbeddingBag
torch.nn.modules.transformer: Transformer TransformerDecoder TransformerDecoderLayer
  TransformerEncoder TransformerEncoderLayer
torch.nn.modules.upsampling: Upsample UpsamplingBilinear2d UpsamplingNearest2d
"""
"""Modules with their names; a line that is indented goes on."""


def _read() -> Iterator[str]:
    module = ""
    for line in _NAMES.splitlines():
        head, colon, tail = line.partition(": ")
        if colon:
            module = head
        for name in (tail if colon else line).split():
            yield f"{module}.{name}"


MODELS: Final = frozenset(_read())
