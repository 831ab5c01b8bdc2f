"Reinforcement learning for language models: notebooks that teach, a package that runs."
__version__ = '0.2.0'

# What `rl4llm` itself offers; all else is in the package of its kind, such as rl4llm.advantages.
PUBLIC = {
    'Policy': 'core.policy', 'Rollouts': 'core.rollouts', 'Recipe': 'core.registry',
    'recipe': 'core.registry', 'recipes': 'core.method_map', 'recipe_map': 'core.method_map',
    'add_recipe': 'core.registry', 'stage': 'core.registry', 'stages': 'core.registry',
    'use': 'core.registry', 'settings': 'core.settings_file',
    'apply_settings': 'core.settings_file', 'size': 'core.settings_file',
    'task': 'tasks.protocol', 'task_from': 'tasks.own_data', 'Item': 'tasks.protocol',
    'correct': 'rewards.verifier',
    'train': 'training.loop', 'TrainingDiverged': 'training.loop', 'Run': 'training.records',
    'load_run': 'training.records', 'load_runs': 'training.records',
    'evaluate': 'training.evaluation', 'Evaluation': 'training.records',
    'Evaluate': 'training.callbacks', 'Checkpoint': 'training.callbacks',
    'EarlyStop': 'training.callbacks', 'Progress': 'training.callbacks',
    'LivePlot': 'training.callbacks', 'plot_metrics': 'training.callbacks',
    'pretrain': 'training.pretraining', 'compare': 'studies.comparison',
    'load_study': 'studies.study', 'pass_at_k': 'analysis.passk', 'report': 'analysis.page',
    'replay': 'analysis.traces', 'save_rollouts': 'analysis.traces',
    'load_rollouts': 'analysis.traces', 'check_answer': 'course.exercises',
    'demo': 'app.demonstration', 'doctor': 'app.diagnosis',
}
PUBLIC = {name: f'rl4llm.{module}' for name, module in PUBLIC.items()}

from rl4llm.core.lazy import attach      # noqa: E402

__getattr__, __dir__, __all__ = attach(__name__, PUBLIC)
